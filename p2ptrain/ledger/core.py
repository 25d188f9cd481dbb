"""The ledger of one node: events in, effects out. The same class runs in nodes and in the
simulator.

It joins the parts: what is agreed (`state`), what was heard (`view`), what to want and what to
accept (`propose`, `accept`), one height's consensus (`instance`), and catching up (`catchup`). No
sockets, no disk, no clock: `now` comes with every call and never goes back.

    effects = ledger.handle(event, now)     # carry out in this order, see `effects`
    wake me at ledger.next_deadline() with Tick()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger import accept, propose
from p2ptrain.ledger.acceptor import Acceptor, recall
from p2ptrain.ledger.accuser import Accuser
from p2ptrain.ledger.base import Base
from p2ptrain.ledger.catchup import Catchup
from p2ptrain.ledger.effects import (
    Announce,
    AskEntries,
    Decided,
    Effect,
    IdentityInUse,
    Note,
    Send,
)
from p2ptrain.ledger.electorate import Electorate, Sign
from p2ptrain.ledger.events import Accused, Event, Heard, NotAlone, Ready, Received
from p2ptrain.ledger.evidence import Statement
from p2ptrain.ledger.gathering import Wish
from p2ptrain.ledger.instance import Counsel, Instance, Judge
from p2ptrain.ledger.kept import CommittedUpdate, Kept
from p2ptrain.ledger.leading import LETTERS_MAX
from p2ptrain.ledger.messages import (
    Accusation,
    Entries,
    EntriesRequest,
    Message,
    Outcome,
    Prepare,
    Propose,
    Pruned,
)
from p2ptrain.ledger.pace import earliest
from p2ptrain.ledger.rules import Rules
from p2ptrain.ledger.state import LedgerState, Phase, apply
from p2ptrain.ledger.tally import Tally
from p2ptrain.ledger.values import Certified, Commit, Value
from p2ptrain.ledger.verify import Verify, check_certified
from p2ptrain.ledger.view import View
from p2ptrain.ledger.witness import statements_of


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """For people: what is agreed, what is wanted next, and who is waited for."""

    height: int
    head: Digest
    step: int
    phase: Phase
    attempt: int
    round: int
    proposer: PeerId
    reason: str
    waiting_for: tuple[PeerId, ...]


class Ledger:
    """One peer's copy of the chain and its part in making it longer."""

    def __init__(
        self,
        rules: Rules,
        me: PeerId,
        sign: Sign,
        verify: Verify,
        chain: Sequence[Certified] = (),
        records: Sequence[bytes] = (),
        now: float = 0.0,
        base: Base | None = None,
    ) -> None:
        """`chain` and `records` are what this node's own disk holds, exactly as it wrote them.

        With a `base` the chain begins there: it is what follows the base's own Commit.
        """
        self.rules = rules
        self.me = me
        self.kept = Kept(rules, base)
        self.state = self.kept.start
        self.view = View(me)
        self._sign = sign
        self._verify = verify
        self._silent = False
        self._accuser = Accuser(rules, me, verify, self.view, self.state)
        self._catchup = Catchup()
        for certified in (*(() if base is None else (base.commit,)), *chain):
            self._append(certified, apply(rules, self.state, certified.entry))
        self._acceptors = recall(records, decided={self.state.line: self.state.height})
        self._ahead: dict[PeerId, Message] = {}
        self._look_again_at: float | None = now
        self._wanted: Wish | None = None
        self._tally: Tally | None = None
        self._instance = self._next_instance()

    @property
    def chain(self) -> Sequence[Certified]:
        """The entries that are kept, the base's own Commit first where there is a base."""
        return self.kept.entries

    @property
    def updates(self) -> Mapping[int, CommittedUpdate]:
        """By outer step, as far back as the chain is kept."""
        return self.kept.updates

    # ── for the node ─────────────────────────────────────────────────────────────────────────────

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event in. The effects are to be carried out in the order of the list."""
        effects: list[Effect] = []
        news = True
        match event:
            case Received(sender, message):
                effects = self._receive(sender, message, now)
            case Heard(peer, height):
                self._catchup.heard(peer, height, self.state.height, now)
                news = False
            case Accused(evidence):
                effects = self._weigh(self._accuser.accuse(evidence))
            case NotAlone(what):
                effects = self._stop_voting(what)
            case _:
                news = self._note(event, now)
        if news or self._is_time(now):
            effects += self._advance(now)
        return effects

    def next_deadline(self) -> float | None:
        """When to call `handle(Tick(), now)` if nothing else happens before."""
        return earliest(self._instance.next_deadline(), self._look_again_at, self._catchup.ask_at)

    def records(self) -> list[bytes]:
        """The fewest records that a restart needs: to rewrite a log of votes that has grown
        long.
        """
        live = [*self._acceptors.values(), self._instance.acceptor]
        return [record for acceptor in live for record in acceptor.records()]

    def voted_for(self) -> tuple[Digest, ...]:
        """The updates that this node has promised to hold, of heights that are not decided yet."""
        live = [*self._acceptors.values(), self._instance.acceptor]
        values = [each.accepted.entry.value for each in live if each.accepted is not None]
        return tuple(value.update for value in values if isinstance(value, Commit))

    def page(self, from_height: int) -> Entries | Pruned:
        """The answer to an EntriesRequest."""
        return self.kept.page(from_height)

    def out_of_reach(self) -> Mapping[PeerId, Pruned]:
        """What those answered who have the entry that this node lacks no more; empty while
        somebody may have it.
        """
        return self._catchup.out_of_reach(self.state.height)

    def status(self, now: float) -> LedgerStatus:
        state = self.state
        wish = propose.what_to_propose(self.rules, state, self.view, now)
        return LedgerStatus(
            height=state.height,
            head=state.head,
            step=state.step,
            phase=state.phase,
            attempt=state.attempt,
            round=self._instance.round,
            proposer=self._instance.electorate.proposer(self._instance.round),
            reason=wish.reason,
            waiting_for=wish.waiting_for,
        )

    def _note(self, event: Event, now: float) -> bool:
        """Take a report in; what is wanted is worked out anew unless the report cannot matter."""
        if isinstance(event, Ready) and self.state.is_member(event.peer):
            self.view.note_lag(event, now)
        if not self.view.note(event):
            return False
        if self._tally is None or not self._tally.absorbs(event):
            self._wanted = self._tally = None
        return True

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    def _receive(self, sender: PeerId, message: Message, now: float) -> list[Effect]:
        match message:
            case EntriesRequest(from_height):
                return [Send(sender, self.page(from_height))]
            case Entries(height, certified):
                return self._take_entries(sender, height, certified, now)
            case Pruned():
                self._catchup.pruned(sender, message, self.state.height, now)
                return []
            case Outcome(certified):
                return self._take_entries(sender, message.height, (certified,), now, live=True)
            case Accusation(evidence):
                return self._weigh(self._accuser.accuse(evidence))
            case _:
                return self._receive_vote(sender, message, now)

    def _receive_vote(self, sender: PeerId, message: Message, now: float) -> list[Effect]:
        """A message of consensus: of the height under way, of one that is over, or of one ahead."""
        assert not isinstance(message, Outcome | Entries | EntriesRequest | Pruned | Accusation)
        if sender == self.me:
            kind = type(message).__name__
            return self._stop_voting(f"another process sent a {kind} as {self.me}")
        due = self.state.height + 1
        if message.height == due:
            effects = self._listen(due, self._accuser.read(sender, message, due))
            return effects + self._instance.receive(sender, message, now)
        if message.height < due:
            height = message.height
            effects = self._listen(height, self._accuser.read(sender, message, height))
            if isinstance(message, Prepare | Propose):
                effects.append(Send(sender, self._news(height)))
            return effects
        if self.state.is_member(sender):
            self._ahead[sender] = message
        self._catchup.heard(sender, message.height - 1, self.state.height, now)
        return []

    def _news(self, height: int) -> Message:
        """For a proposer that is behind: where many answer, how far they are, and it asks one."""
        many = len(self.state.voters) > LETTERS_MAX
        return Entries(self.state.height, ()) if many else self.page(height)

    def _take_entries(
        self,
        sender: PeerId,
        height: int,
        page: Sequence[Certified],
        now: float,
        *,
        live: bool = False,
    ) -> list[Effect]:
        effects: list[Effect] = []
        self._catchup.heard(sender, height, self.state.height, now)
        for certified in page:
            if certified.entry.height <= self.state.height:
                effects += self._compare(sender, certified)
            elif certified.entry.height == self.state.height + 1:
                try:
                    effects += self._adopt(certified, now, live=live)
                except RemoteProtocolError as exc:
                    self._catchup.disproved(sender, self.state.height)
                    return [*effects, Note(f"{sender} sent a bad entry: {exc.what}")]
        self._catchup.grown(self.state.height, now)
        return effects

    def _compare(self, sender: PeerId, certified: Certified) -> list[Effect]:
        height = certified.entry.height
        ours = self.kept.at(height)
        if ours is None or ours.entry.digest == certified.entry.digest:
            return []
        note = Note(f"{sender} shows another entry {height} than ours: a fork, or a forgery")
        return [*self._weigh(self._accuser.compare(ours, certified)), note]

    def _adopt(self, certified: Certified, now: float, *, live: bool) -> list[Effect]:
        """`live` if it was announced as it was decided. In older entries may stand votes that this
        node gave before it lost its disk; they bind nobody any more.
        """
        state = check_certified(self.rules, self.state, certified, self._verify)
        votes = (it for it in statements_of(certified.certificate) if live or it[0] != self.me)
        effects = self._listen(state.height, votes, genuine=True)
        return effects + self._move_on(certified, state, now)

    # ── accountability ───────────────────────────────────────────────────────────────────────────

    def _listen(
        self, height: int, said: Iterable[tuple[PeerId, Statement]], *, genuine: bool = False
    ) -> list[Effect]:
        """Take in what voters signed, this node or others."""
        signed = list(said)
        mine = [statement for peer, statement in signed if peer == self.me]
        effects = self._weigh(self._accuser.listen(height, signed, genuine=genuine))
        for statement in mine:
            effects += self._hear_myself(height, statement, genuine=genuine)
        return effects

    def _weigh(self, accusations: list[Effect]) -> list[Effect]:
        """Who is accused is no longer wanted as a member."""
        if accusations:
            self._wanted = self._tally = None
        return accusations

    def _hear_myself(self, height: int, statement: Statement, *, genuine: bool) -> list[Effect]:
        """Is it this process that said so? It remembers nothing of heights that are over, nor of
        those before heights that it has records of.
        """
        if self._acceptors or height <= self.state.height:
            return []
        if self._instance.acceptor.may_have_said(statement):
            return []
        message = statement.message(self.state.line, height)
        if not genuine and not self._verify(self.me, message, statement.signature):
            return []
        what = "vote" if statement.promised is None else "promise"
        return self._stop_voting(f"a {what} of {self.me} at height {height} is not in its records")

    def _stop_voting(self, what: str) -> list[Effect]:
        """Two processes with one identity would contradict each other: this one only follows."""
        if self._silent:
            return []
        self._silent = True
        acceptor = self._instance.acceptor
        self._acceptors[acceptor.line, acceptor.height] = acceptor
        self._instance = self._next_instance()
        return [IdentityInUse(what)]

    # ── time and knowledge ───────────────────────────────────────────────────────────────────────

    def _advance(self, now: float) -> list[Effect]:
        """Do all that has become possible, height after height."""
        effects: list[Effect] = []
        while True:
            counsel = self._counsel(now)
            effects += self._instance.step(counsel, now)
            outcome = self._instance.outcome
            if outcome is None:
                break
            state = apply(self.rules, self.state, outcome.entry)
            effects += [*self._move_on(outcome, state, now), Announce(Outcome(outcome))]
        return effects + self._ask(now)

    def _counsel(self, now: float) -> Counsel:
        wish = self._wanted
        again_at = self._look_again_at
        if wish is None or (again_at is not None and now >= again_at):
            wish, self._tally = propose.reconsider(self.rules, self.state, self.view, now)
            self._wanted = wish
            self._look_again_at = wish.look_again_at
        return Counsel(wish.value, self._judge(now), self._holders, self.view.down)

    def _judge(self, now: float) -> Judge:
        def judge(value: Value, forced: bool, doubtful: bool) -> accept.Verdict:
            known = (self.rules, self.state, self.view, value, now)
            return accept.may_accept(*known, forced=forced, doubtful=doubtful)

        return judge

    def _holders(self, update: Digest, proposer: PeerId) -> tuple[PeerId, ...]:
        return accept.holders_of(self.state, self.view, update, proposer)

    def _ask(self, now: float) -> list[Effect]:
        peer = self._catchup.whom_to_ask(self.state.height, self.view.down, now)
        return [] if peer is None else [AskEntries(peer, self.state.height + 1)]

    def _is_time(self, now: float) -> bool:
        deadline = self.next_deadline()
        return deadline is not None and now >= deadline

    # ── the next height ──────────────────────────────────────────────────────────────────────────

    def _move_on(self, certified: Certified, state: LedgerState, now: float) -> list[Effect]:
        before = self.state
        self._append(certified, state)
        self.view.entered(before, state)
        self._wanted = self._tally = None
        self._instance = self._next_instance()
        effects: list[Effect] = [Decided(certified)]
        waiting, self._ahead = self._ahead, {}
        for sender, message in waiting.items():
            effects += self._receive_vote(sender, message, now)
        return effects

    def _append(self, certified: Certified, state: LedgerState) -> None:
        self.kept.append(certified)
        self._accuser.entered(certified.entry, state.voters)
        self.state = state

    def _next_instance(self) -> Instance:
        line, height = self.state.line, self.state.height + 1
        electorate = Electorate(
            self.rules,
            line,
            height,
            self.state.head,
            self.state.voters,
            self.me,
            self._sign,
            self._verify,
            self._silent,
        )
        return Instance(electorate, self._acceptors.pop((line, height), Acceptor(line, height)))

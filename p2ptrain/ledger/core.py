"""The ledger of one node: events in, effects out. Nodes and the simulator run the same class.

It combines the agreed `chain`, the reports and decisions of `policy`, the consensus of `paxos`, and
`history`, which fetches missing entries. The time `now` is an argument and never decreases.

    effects = ledger.handle(event, now)     # carry these out in order, see `effects`
    ledger.handle(Tick(), now)              # do this at ledger.next_deadline()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.accountability.accuser import Accuser
from p2ptrain.ledger.accountability.statement_log import statements_of
from p2ptrain.ledger.branches.branch_sync import BranchSync
from p2ptrain.ledger.chain.apply import apply
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Sign, Verify
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Branch, Certified
from p2ptrain.ledger.chain.verify import check_certified
from p2ptrain.ledger.history.base import Base
from p2ptrain.ledger.history.catchup import Catchup
from p2ptrain.ledger.history.kept_chain import KeptChain
from p2ptrain.ledger.messages.effects import (
    Announce,
    AskEntries,
    Decided,
    Effect,
    Note,
    Rejoin,
    Send,
    VoteWithheld,
    VotingStopped,
)
from p2ptrain.ledger.messages.events import Accused, CloneFound, Event, PeerHeight, Received, Tick
from p2ptrain.ledger.messages.evidence import Statement
from p2ptrain.ledger.messages.messages import (
    Accusation,
    BranchMessage,
    Entries,
    EntriesRequest,
    Message,
    Outcome,
    Prepare,
    Propose,
    Pruned,
    ShowClaim,
    ShowFinding,
    VoteMessage,
)
from p2ptrain.ledger.messages.peer_reports import AnyReport, FindingMade, Ready
from p2ptrain.ledger.paxos.acceptor import Acceptor, last_voted, restored_acceptors
from p2ptrain.ledger.paxos.electorate import Electorate
from p2ptrain.ledger.paxos.instance import Instance
from p2ptrain.ledger.paxos.timers import earliest
from p2ptrain.ledger.paxos.turns import Tardiness
from p2ptrain.ledger.policy.known_findings import KnownFindings
from p2ptrain.ledger.policy.policy import Policy, what_to_propose
from p2ptrain.ledger.policy.reduce_order import Arrange, in_given_order
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.queries import LedgerStatus, Queries


class Ledger(Queries):
    """One peer's copy of the chain, and this peer's part in deciding further entries."""

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
        arrange: Arrange = in_given_order,
    ) -> None:
        """`chain` and `records` (this node's votes and promises) come from this node's own disk.

        With a `base` (a certified state that replaces pruned entries), `chain` contains only the
        entries after the base's Commit.
        """
        self.rules, self.me = rules, me
        self.kept = KeptChain(rules, base)
        self.state = self.kept.start
        self.reports = Reports(me, findings=KnownFindings(verify))
        self._sign, self._verify, self._arrange = sign, verify, arrange
        self._silent = self._over = False
        self._abstains_at = 0
        self._tardy = Tardiness()
        self._accuser = Accuser(rules, me, verify, self.reports, self.state)
        self._catchup = Catchup()
        self._branches: BranchSync | None = None
        if rules.branches:
            self._branches = BranchSync(rules, me, sign, verify, self.reports, self._catchup, now)
        self._know_members()
        for certified in (*(() if base is None else (base.commit,)), *chain):
            self._append(certified, apply(rules, self.state, certified.entry), now)
        self._acceptors = restored_acceptors(records, decided=self.state.decided)
        self._last_voted = last_voted(records)
        self._ahead: dict[PeerId, Message] = {}
        self._wanted: Policy | None = None
        self._due: float | None = now
        self._instance = self._next_instance()

    # ── for the node ─────────────────────────────────────────────────────────────────────────────

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event. Return effects, which must be carried out in the order of the list.
        After a Rejoin, which ends this ledger, the list is always empty.
        """
        effects: list[Effect] = []
        if self._over:
            return []
        news, moved = True, False
        if self._branches is not None:
            event, moved = self._branches.filter_event(event, self.state)
            if moved:
                self._wanted = None
        match event:
            case Received(_, ShowClaim(peer, said)):
                effects, news = self._hear_claim(Ready.of(peer, said), now, shown=True)
            case Received(_, ShowFinding(finding)):
                news = self._note(FindingMade(finding), now)
            case Received(sender, message):
                effects = self._receive(sender, message, now)
            case PeerHeight(peer, height):
                self._catchup.note_height(peer, height, self.state.height, now)
                self._due = earliest(self._due, self._catchup.ask_at)
                news = False
            case Accused(evidence):
                effects = self._weigh(self._accuser.accuse(evidence))
            case CloneFound(what):
                effects = self._stop_voting(what)
            case Tick():
                news = False
            case Ready() if self.rules.claims:
                effects, news = self._hear_claim(event, now, shown=False)
            case _:
                news = self._note(event, now)
        if news or moved or (self._due is not None and now >= self._due):
            effects += self._advance(now)
            self._due = self._next_due()
        return effects

    def status(self, now: float) -> LedgerStatus:
        wish = what_to_propose(self.rules, self.state, self.reports, now)
        branch = "" if self._branches is None else self._branches.words(self.state, now)
        return self._status(wish, self._instance.round, branch)

    def next_deadline(self) -> float | None:
        """Return the time of the next `handle(Tick(), now)`, if nothing else happens earlier."""
        return self._due

    def _next_due(self) -> float | None:
        if self._over or self._wanted is None:
            return None
        part_at = None if self._branches is None else self._branches.wake_at
        due = self._instance.next_deadline(), self._wanted.wish.look_again_at, part_at
        return earliest(*due, self._catchup.ask_at)

    def _note(self, event: AnyReport, now: float) -> bool:
        """Store a report. Return whether it may change what this ledger does now."""
        self.reports.note_time(event, now)
        if not self.reports.note(event):
            return False
        if self._wanted is not None and self._wanted.absorbs(event):
            return self._instance.is_due(self._wanted)
        self._wanted = None
        return True

    def _hear_claim(self, report: Ready, now: float, *, shown: bool) -> tuple[list[Effect], bool]:
        """Store a report with its claim. Return effects, and whether there is any news."""
        counts, effects = self._accuser.note_claim(report, shown=shown)
        return self._weigh(effects), (counts and self._note(report, now)) or bool(effects)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    def _receive(self, sender: PeerId, message: Message, now: float) -> list[Effect]:
        match message:
            case EntriesRequest(from_height):
                return [Send(sender, self.page(from_height))]
            case Entries():
                return self._receive_entries(sender, message, now)
            case Pruned():
                if not self._is_elsewhere(sender):
                    self._catchup.pruned(sender, message, self.state.height, now)
                return []
            case Outcome(certified):
                entries = Entries(message.height, (certified,))
                return self._receive_entries(sender, entries, now)
            case Accusation(evidence):
                return self._weigh(self._accuser.accuse(evidence))
            case _ if isinstance(message, BranchMessage):
                return self._receive_branch(sender, message, now)
            case _:
                return self._receive_vote(sender, message, now)

    def _receive_branch(self, sender: PeerId, message: BranchMessage, now: float) -> list[Effect]:
        if self._branches is None:
            return [Note(f"{sender} sent a message about a branch, but this run does not branch")]
        silent = self._must_not_vote()
        return self._branches.receive(sender, message, self.state, now, silent=silent)

    def _receive_vote(self, sender: PeerId, message: Message, now: float) -> list[Effect]:
        """Handle a consensus message for the current height, an earlier one or a later one."""
        assert isinstance(message, VoteMessage)
        if sender == self.me:
            kind = type(message).__name__
            return self._stop_voting(f"another process sent a {kind} as {self.me}")
        due = self.state.height + 1
        if message.height == due:
            effects = self._log_signed(due, self._accuser.statements_of(sender, message, due))
            return effects + self._instance.receive(sender, message, now)
        if message.height < due:
            height = message.height
            effects = self._log_signed(height, self._accuser.statements_of(sender, message, height))
            if isinstance(message, Prepare | Propose):
                effects.append(Send(sender, self._news(height)))
            return effects
        if self._is_elsewhere(sender):
            return []
        if self.state.is_member(sender):
            self._ahead[sender] = message
        self._catchup.note_height(sender, message.height - 1, self.state.height, now)
        return []

    def _receive_entries(self, sender: PeerId, message: Entries, now: float) -> list[Effect]:
        effects, before, height = list[Effect](), self.state.height, message.height
        page: Sequence[Certified] = message.certified
        if self._branches is not None:
            taken = self._branches.filter_page(sender, height, page, self.state, self.kept.at, now)
            effects, page = taken
        if not self._is_elsewhere(sender):
            self._catchup.note_answer(sender, height, self.state.height, now, shown=bool(page))
        for certified in page:
            if certified.entry.height <= self.state.height:
                found = self._accuser.compare(sender, self.kept.at, certified)
                effects += self._weigh(found) if len(found) > 1 else found
            elif certified.entry.height == self.state.height + 1:
                if isinstance(certified.entry.value, Branch):
                    self._catchup.disproved(sender, self.state.height)
                try:
                    effects += self._adopt(certified, now)
                except RemoteProtocolError as exc:
                    self._catchup.disproved(sender, self.state.height)
                    return [*effects, Note(f"{sender} sent an invalid entry: {exc.what}")]
        if self.state.height > before:  # Ask this peer for more only if its entries were new.
            self._catchup.note_growth(sender, self.state.height, now)
        return effects

    def _adopt(self, certified: Certified, now: float) -> list[Effect]:
        """Append an entry after checking it. Ignore this node's own votes in the certificate: it
        may have cast them before it lost its disk, and at a decided height they do no harm.
        """
        state = check_certified(self.rules, self.state, certified, self._verify)
        if isinstance(certified.entry.value, Branch):
            assert self._branches is not None, "a valid Branch in a run that does not branch"
            self._branches.offer(certified)
            return []
        votes = (it for it in statements_of(certified.certificate) if it[0] != self.me)
        effects = self._log_signed(state.height, votes, genuine=True)
        return effects + self._move_on(certified, state, now)

    # ── accountability ───────────────────────────────────────────────────────────────────────────

    def _log_signed(
        self, height: int, said: Iterable[tuple[PeerId, Statement]], *, genuine: bool = False
    ) -> list[Effect]:
        """Look for contradictions in the statements `said` (votes and promises) about `height`, and
        for statements signed by this node that its records lack. `genuine`: they were verified.
        """
        signed = list(said)
        mine = [statement for peer, statement in signed if peer == self.me]
        effects = self._weigh(self._accuser.note(height, signed, genuine=genuine))
        for statement in mine:
            effects += self._check_own(height, statement)
        return effects

    def _weigh(self, accusations: list[Effect]) -> list[Effect]:
        """Return `accusations`. If there are any, decide anew what to propose."""
        if accusations:
            self._wanted = None
        return accusations

    def _check_own(self, height: int, statement: Statement) -> list[Effect]:
        """Do not vote at `height` if a statement that this node signed is not in its records. Vote
        again at the next height: showing an old statement to a node that has lost its disk must not
        silence it. Heights below those in the records are not checked."""
        remembers = any(line == self.state.line for line, _ in self._acceptors)
        if remembers or height <= self.state.height or self._must_not_vote():
            return []
        if self._instance.acceptor.may_have_said(statement):
            return []
        message = statement.message(self.state.line, height)
        if not self._verify(self.me, message, statement.signature):
            return []
        self._abstains_at = height
        self._restart_instance()
        what = "vote" if statement.promised is None else "promise"
        return [VoteWithheld(height, f"a {what} of {self.me} is not in its records")]

    def _stop_voting(self, what: str) -> list[Effect]:
        """Stop voting, because two processes with this identity would sign contradictory votes."""
        if self._silent:
            return []
        self._silent = True
        self._restart_instance()
        return [VotingStopped(what)]

    def _restart_instance(self) -> None:
        acceptor = self._instance.acceptor
        self._acceptors[acceptor.line, acceptor.height] = acceptor
        self._instance = self._next_instance()

    # ── progress ─────────────────────────────────────────────────────────────────────────────────

    def _advance(self, now: float) -> list[Effect]:
        """Do everything that has become possible, for as many heights as possible."""
        effects = self._part(now)
        while not self._over:
            effects += self._instance.step(self._policy(now), now)
            outcome = self._instance.outcome
            if outcome is None:
                break
            state = apply(self.rules, self.state, outcome.entry)
            effects += [*self._move_on(outcome, state, now), Announce(Outcome(outcome))]
            effects += self._part(now)
        return effects if self._over else effects + self._ask(now)

    def _part(self, now: float) -> list[Effect]:
        """Move to a branch or to a chain that outranks ours, if it is time (SPEC.md B3, B5)."""
        effects: list[Effect] = []
        while self._branches is not None and not self._over:
            before = self.reports.outranked_by
            follows = self._branches.step(self.state, now, silent=self._must_not_vote())
            if self.reports.outranked_by != before:
                self._wanted = None
            self._over = any(isinstance(effect, Rejoin) for effect in follows.effects)
            branch = follows.certified
            if branch is None:
                return [*effects, *follows.effects]
            state = apply(self.rules, self.state, branch.entry)
            effects += [*self._move_on(branch, state, now), *follows.effects]
        return effects

    def _policy(self, now: float) -> Policy:
        if self._wanted is None or not self._wanted.holds(now):
            self._wanted = Policy.of(self.rules, self.state, self.reports, self._arrange, now)
        return self._wanted

    def _ask(self, now: float) -> list[Effect]:
        peer = self._catchup.whom_to_ask(self.state.height, self.reports.down, now)
        return [] if peer is None else [AskEntries(peer, self.state.height + 1)]

    # ── the next height ──────────────────────────────────────────────────────────────────────────

    def _move_on(self, certified: Certified, state: LedgerState, now: float) -> list[Effect]:
        before, acceptor = self.state, self._instance.acceptor
        if acceptor.records():
            self._last_voted[acceptor.line] = acceptor
            if state.line != before.line:
                self._acceptors[acceptor.line, acceptor.height] = acceptor
        self._append(certified, state, now)
        self.reports.entered(before, state)
        self._wanted = None
        self._tardy.decided(certified.certificate.round, self._instance.turns)
        self._instance = self._next_instance()
        effects: list[Effect] = [Decided(certified)]
        waiting, self._ahead = self._ahead, {}
        for sender, message in waiting.items():
            effects += self._receive_vote(sender, message, now)
        return effects

    def _append(self, certified: Certified, state: LedgerState, now: float) -> None:
        self.kept.append(certified)
        self._accuser.entered(certified.entry, state.voters)
        if self._branches is not None:
            self._branches.entered(self.state, state, now)
        self.reports.remember_attempt(self.state, state, now)
        self.state = state
        self._know_members()

    def _know_members(self) -> None:
        self._catchup.members = self.reports.know(self.rules, self.state)

    def _next_instance(self) -> Instance:
        who, silent = (self.rules, self.me, self._sign, self._verify), self._must_not_vote()
        electorate = Electorate.after(self.state, *who, silent=silent)
        place = electorate.line, electorate.height
        acceptor = self._acceptors.pop(place, Acceptor(*place))
        return Instance(electorate, acceptor, self._tardy.at(electorate.height))

    def _undecided(self) -> list[Acceptor]:
        return [*self._acceptors.values(), self._instance.acceptor]

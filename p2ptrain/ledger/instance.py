"""One height's consensus at one node: both roles, acceptor and proposer. SPEC.md R1–R6 are here.

        round 0                 round r > 0
    IDLE ───────► PROPOSED    IDLE ──Prepare──► PREPARING ──quorum of promises──► PROPOSED
                                └─ promised before a restart ─► SPENT
    a quorum of votes in PROPOSED makes `outcome`

It does not know what entries mean: a Counsel says what to propose, and what may be accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.accept import Answer, Verdict
from p2ptrain.ledger.acceptor import Acceptor
from p2ptrain.ledger.effects import Effect, FetchUpdate, Note, Persist, Send
from p2ptrain.ledger.electorate import Electorate, forced_by, proof_of
from p2ptrain.ledger.messages import (
    Accept,
    Accepted,
    Message,
    Prepare,
    Promise,
    PromiseProof,
    Propose,
    Refused,
)
from p2ptrain.ledger.pace import Repeater, RoundTimer, earliest
from p2ptrain.ledger.values import Certified, Entry, Value

ROUND_JUMP_MAX = 1 << 20
"""A peer that names an absurd round must not use the rounds up for everybody."""


Judge = Callable[[Value, bool], Verdict]
"""judge(value, forced): may this be accepted? `forced` if the promises leave no choice."""


@dataclass(frozen=True, slots=True)
class Counsel:
    """What the instance is told at each step: wishes, judgement, and who seems to be down."""

    wish: Value | None
    judge: Judge
    holders: Callable[[Digest, PeerId], tuple[PeerId, ...]]
    down: AbstractSet[PeerId]


class Stage(Enum):
    IDLE = "idle"
    PREPARING = "preparing"
    PROPOSED = "proposed"
    SPENT = "spent"


class Instance:
    """`receive` takes messages of this height in; `step` then does what has become possible."""

    def __init__(self, electorate: Electorate, acceptor: Acceptor) -> None:
        self.electorate = electorate
        self.acceptor = acceptor
        self.round = acceptor.promised
        self.stage = Stage.IDLE
        self.outcome: Certified | None = None
        self.pending: Propose | None = None
        self._promises: dict[PeerId, PromiseProof] = {}
        self._best: Accepted | None = None
        self._proposal: Propose | None = None
        self._votes: dict[PeerId, bytes] = {}
        self._timer = RoundTimer(electorate.rules.round_timeout_s)
        self._resend = Repeater()
        self._fetch = Repeater()
        self._said = ""

    # ── what others say ──────────────────────────────────────────────────────────────────────────

    def receive(self, sender: PeerId, message: Message, now: float) -> list[Effect]:
        """Take a message of this height in. Follow with `step`."""
        if not self.electorate.votes_here or sender not in self.electorate.names:
            return [
                Note(f"{sender} sent a vote message for a height in which one of us has no vote")
            ]
        match message:
            case Prepare():
                return self._on_prepare(sender, message)
            case Promise():
                return self._on_promise(sender, message)
            case Propose():
                return self._on_propose(sender, message)
            case Accept():
                return self._on_accept(sender, message)
            case Refused():
                return self._on_refused(sender, message)
            case _:
                return []

    def _on_prepare(self, sender: PeerId, message: Prepare) -> list[Effect]:
        fault = self._leader_fault(sender, message.round)
        if fault:
            return [Note(f"{sender} prepares round {message.round}: {fault}")]
        if message.round < self.acceptor.promised:
            return [self._refusal(sender, message.round, "a later round is promised")]
        accepted = self.acceptor.accepted
        if accepted is not None and accepted.round == message.round:
            return []
        effects: list[Effect] = []
        if message.round > self.acceptor.promised:
            effects.append(Persist(self._promise(message.round)))
            self._enter(message.round)
        return [*effects, Send(sender, self.electorate.promise(message.round, accepted))]

    def _on_promise(self, sender: PeerId, promise: Promise) -> list[Effect]:
        if self.stage is not Stage.PREPARING or promise.round != self.round:
            return []
        if sender in self._promises:
            return []
        fault = self.electorate.promise_fault(sender, promise)
        if fault:
            return [Note(f"a promise of {sender} does not count: {fault}")]
        self._count_promise(sender, promise)
        return []

    def _count_promise(self, voter: PeerId, promise: Promise) -> None:
        self._promises[voter] = proof_of(voter, promise)
        accepted = promise.accepted
        if accepted is not None and (self._best is None or accepted.round > self._best.round):
            self._best = accepted

    def _on_propose(self, sender: PeerId, message: Propose) -> list[Effect]:
        entry, accepted = message.entry, self.acceptor.accepted
        fault = self._leader_fault(sender, message.round)
        if fault or entry.parent != self.electorate.parent:
            return [Note(f"{sender} proposes in round {message.round}: {fault or 'another chain'}")]
        if accepted is not None and accepted.round == message.round:
            return self._on_proposed_again(sender, message, accepted)
        if message.round < self.acceptor.promised:
            return [self._refusal(sender, message.round, "a later round is promised")]
        if message == self.pending:
            return []
        if message.round > 0:
            fault = self.electorate.proofs_fault(message.round, entry, message.promises)
            if fault:
                return [Note(f"{sender} proposes in round {message.round}: {fault}")]
        self._enter(message.round)
        self.pending = message
        return []

    def _on_proposed_again(
        self, sender: PeerId, message: Propose, accepted: Accepted
    ) -> list[Effect]:
        if message.entry != accepted.entry:
            return [Note(f"{sender} proposes two entries in round {message.round}")]
        vote = self.electorate.vote(message.round, message.entry)
        return [Send(sender, Accept(vote))]

    def _on_accept(self, sender: PeerId, message: Accept) -> list[Effect]:
        vote, proposal = message.vote, self._proposal
        if proposal is None or vote.round != proposal.round or sender in self._votes:
            return []
        fault = self.electorate.vote_fault(sender, vote)
        if not fault and vote.entry != proposal.entry.digest:
            fault = "it is for another entry than was proposed"
        if fault:
            return [Note(f"a vote of {sender} does not count: {fault}")]
        self._votes[sender] = vote.signature
        self._conclude(proposal)
        return []

    def _on_refused(self, sender: PeerId, message: Refused) -> list[Effect]:
        if message.promised > self.round + ROUND_JUMP_MAX or message.round > self.round:
            return []
        if message.promised > self.round:
            self._enter(message.promised)
        return [Note(f"{sender} refuses round {message.round}: {message.reason}")]

    def _leader_fault(self, sender: PeerId, round: int) -> str:
        if self.electorate.proposer(round) != sender:
            return "that is another voter's turn"
        return "that round is absurd" if round > self.round + ROUND_JUMP_MAX else ""

    def _refusal(self, peer: PeerId, round: int, reason: str) -> Send:
        height, promised = self.electorate.height, self.acceptor.promised
        return Send(peer, Refused(height, round, promised, reason))

    # ── what this node does ──────────────────────────────────────────────────────────────────────

    def step(self, counsel: Counsel, now: float) -> list[Effect]:
        """Do what time and new knowledge allow: vote, lead a round, go on to the next, repeat."""
        if not self.electorate.votes_here or self.outcome is not None:
            return []
        effects = self._consider_pending(counsel, now)
        if self._is_due(counsel):
            self._follow_rounds(counsel.down, now)
            if self.electorate.proposer(self.round) == self.electorate.me:
                effects += self._lead(counsel, now)
        else:
            self._timer.stop()
        if self._resend.take(now):
            effects += self._to_silent()
        if self._fetch.due_at is not None and self._fetch.due_at <= now:
            self._fetch.stop()  # Nobody waits for those bytes any more.
        return effects

    def next_deadline(self) -> float | None:
        if self.outcome is not None:
            return None
        return earliest(self._timer.deadline, self._resend.due_at, self._fetch.due_at)

    def _is_due(self, counsel: Counsel) -> bool:
        known = self.pending is not None or self.acceptor.accepted is not None
        return known or counsel.wish is not None or self.stage is not Stage.IDLE

    def _consider_pending(self, counsel: Counsel, now: float) -> list[Effect]:
        proposal = self.pending
        if proposal is None:
            return []
        proposer = self.electorate.proposer(proposal.round)
        verdict = counsel.judge(proposal.entry.value, _is_forced(proposal))
        if verdict.answer is Answer.LATER:
            return self._wait(verdict, proposer, counsel, now)
        self.pending = None
        self._fetch.stop()
        if verdict.answer is Answer.NO:
            refusal = self._refusal(proposer, proposal.round, verdict.reason)
            return [refusal, Note(f"no vote for {proposer}'s proposal: {verdict.reason}")]
        record = self.acceptor.accept(proposal.round, proposal.entry)
        vote = self.electorate.vote(proposal.round, proposal.entry)
        return [Persist(record), Send(proposer, Accept(vote))]

    def _wait(
        self, verdict: Verdict, proposer: PeerId, counsel: Counsel, now: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        if verdict.reason != self._said:
            self._said = verdict.reason
            effects.append(Note(f"no vote yet: {verdict.reason}"))
        if verdict.fetch is None:
            self._fetch.stop()
        elif self._fetch.due_at is None or self._fetch.take(now):
            if self._fetch.due_at is None:
                self._fetch.start(now)
            holders = counsel.holders(verdict.fetch, proposer)
            effects.append(FetchUpdate(verdict.fetch, holders))
        return effects

    def _follow_rounds(self, down: AbstractSet[PeerId], now: float) -> None:
        """Go to the next round when this one is over; pass over proposers that are down.

        Not while too few voters are up: then no round can decide, and using rounds up helps nobody.
        """
        if self._timer.expired(now):
            self._timer.stop()
            if self.electorate.reached(self.electorate.names - down):
                self._timer.timeouts += 1
                self._enter(self.round + 1)
        if self.electorate.reached(self.electorate.names - down):
            while self.electorate.proposer(self.round) in down:
                self._enter(self.round + 1)
        self._timer.ensure_started(now)

    def _enter(self, round: int) -> None:
        """Be in `round`; what belongs to an earlier one is over."""
        if round <= self.round:
            return
        self.round = round
        self.stage = Stage.IDLE
        self._promises, self._votes = {}, {}
        self._best = self._proposal = None
        self._timer.stop()
        self._resend.stop()
        self._fetch.stop()

    def _promise(self, round: int) -> bytes:
        """Promise `round`, which ends the hope for a proposal of an earlier one."""
        record = self.acceptor.promise(round)
        if self.pending is not None and self.pending.round < round:
            self.pending = None
        return record

    def _lead(self, counsel: Counsel, now: float) -> list[Effect]:
        if self.stage is Stage.IDLE and self.round > 0:
            return self._prepare(counsel, now)
        if self.stage is Stage.IDLE:
            accepted = self.acceptor.accepted
            entry = self._entry(counsel) if accepted is None else accepted.entry
            return self._propose(entry, (), counsel, now)
        if self.stage is Stage.PREPARING and self.electorate.reached(self._promises.keys()):
            return self._propose_after_promises(counsel, now)
        return []

    def _prepare(self, counsel: Counsel, now: float) -> list[Effect]:
        if self.acceptor.promised >= self.round:
            self.stage = Stage.SPENT
            return []
        record = self._promise(self.round)
        self.stage = Stage.PREPARING
        mine = self.electorate.promise(self.round, self.acceptor.accepted)
        self._count_promise(self.electorate.me, mine)
        self._resend.start(now)
        effects: list[Effect] = [Persist(record), *self._to_silent()]
        return effects + self._lead(counsel, now)

    def _propose_after_promises(self, counsel: Counsel, now: float) -> list[Effect]:
        best = self._best
        if best is None or self._may_pass_over(best.entry, counsel):
            free = tuple(it for it in self._promises.values() if it.accepted is None)
            return self._propose(self._entry(counsel), free, counsel, now)
        return self._propose(best.entry, tuple(self._promises.values()), counsel, now)

    def _may_pass_over(self, entry: Entry, counsel: Counsel) -> bool:
        """Whether what somebody accepted cannot be accepted here, and cannot have been chosen
        either: a quorum had not accepted anything. Its promises alone are then as good as all
        of them.
        """
        free = {voter for voter, it in self._promises.items() if it.accepted is None}
        if not self.electorate.reached(free):
            return False
        return counsel.judge(entry.value, True).answer is Answer.LATER

    def _propose(
        self,
        entry: Entry | None,
        proofs: tuple[PromiseProof, ...],
        counsel: Counsel,
        now: float,
    ) -> list[Effect]:
        if entry is None:
            return []
        proposal = Propose(self.round, entry, proofs)
        effects: list[Effect] = []
        if self.acceptor.accepted != Accepted(self.round, entry):
            verdict = counsel.judge(entry.value, _is_forced(proposal))
            if verdict.answer is not Answer.YES:
                return self._wait(verdict, self.electorate.me, counsel, now)
            effects.append(Persist(self.acceptor.accept(self.round, entry)))
        self._fetch.stop()
        self.stage, self._proposal = Stage.PROPOSED, proposal
        vote = self.electorate.vote(self.round, entry)
        self._votes = {self.electorate.me: vote.signature}
        self._resend.start(now)
        self._conclude(proposal)
        return [*effects, *self._to_silent()]

    def _entry(self, counsel: Counsel) -> Entry | None:
        if counsel.wish is None:
            return None
        return Entry(self.electorate.height, self.electorate.parent, counsel.wish)

    def _conclude(self, proposal: Propose) -> None:
        if self.outcome is None and self.electorate.reached(self._votes.keys()):
            entry = proposal.entry
            self.outcome = self.electorate.certified(proposal.round, entry, self._votes)

    def _to_silent(self) -> list[Send]:
        """What this round's proposer says, to every voter that has not answered it."""
        message: Message
        answered: AbstractSet[PeerId]
        if self.stage is Stage.PREPARING:
            message, answered = Prepare(self.electorate.height, self.round), self._promises.keys()
        elif self._proposal is not None:
            message, answered = self._proposal, self._votes.keys()
        else:
            return []
        return [Send(voter, message) for voter in self.electorate.voters if voter not in answered]


def _is_forced(proposal: Propose) -> bool:
    return forced_by(proposal.promises) is not None

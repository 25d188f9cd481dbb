"""The consensus of one height at one node, which votes and, when it is its turn, leads rounds.

        round 0                            round r > 0
    IDLE ──own accept──► PROPOSED    IDLE ──own promise──► PREPARING ──own accept──► PROPOSED
                                       └─ promised before a restart ─► SPENT
    a quorum of votes in PROPOSED makes `outcome`; a later round makes everything IDLE

SPEC.md R1–R6 are implemented here, in `acceptor` (durable promises and votes) and in `proposer`
(promises and votes that a proposer collects). This module does not know what entries mean: a
Counsel says what to propose and what to accept.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import Enum
from typing import assert_never

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Certified, Entry
from p2ptrain.ledger.messages.effects import Effect, FetchUpdate, Note, Persist, Send
from p2ptrain.ledger.messages.messages import (
    Accept,
    Accepted,
    Accusation,
    Prepare,
    Promise,
    Propose,
    Refused,
    VoteMessage,
)
from p2ptrain.ledger.paxos.acceptor import Acceptor
from p2ptrain.ledger.paxos.electorate import Electorate, forced_by
from p2ptrain.ledger.paxos.proposer import Leading, Promises, author_of
from p2ptrain.ledger.paxos.timers import Repeater, earliest, rounds_s
from p2ptrain.ledger.paxos.turns import Turns
from p2ptrain.ledger.policy.accept import Answer, Verdict
from p2ptrain.ledger.policy.policy import Counsel

ROUND_JUMP_MAX = 1 << 20
"""Longest jump to a later round: a peer that names an absurd round must not use all rounds up."""

DOUBTFUL_ROUNDS = 8
"""Rounds, at most one for each voter, in which a voter refuses a proposal without the promises of
voters that are up, or a roster without peers that are here. By then enough proposers could ask all
of them. Any longer, and a voter that is up but silent could block the rest for ever. The limit is a
time, since a proposer may claim any round number.
"""


class Stage(Enum):
    IDLE = "idle"
    PREPARING = "preparing"
    PROPOSED = "proposed"
    SPENT = "spent"


class Instance:
    """`receive` takes messages of this height in; `step` then does what has become possible."""

    def __init__(
        self, electorate: Electorate, acceptor: Acceptor, tardy: frozenset[PeerId] = frozenset()
    ) -> None:
        self.electorate = electorate
        self.acceptor = acceptor
        self.round = acceptor.promised
        self.stage = Stage.IDLE
        self.outcome: Certified | None = None
        self.pending: Propose | None = None
        self.turns = Turns(electorate, tardy)
        self._leading = Leading(electorate, self.round)
        self._resend = Repeater()
        self._fetch = Repeater()
        self._said = ""
        self._wanting_since: float | None = None
        self._refusals: dict[PeerId, int] = {}

    # ── what others say ──────────────────────────────────────────────────────────────────────────

    def receive(self, sender: PeerId, message: VoteMessage, now: float) -> list[Effect]:
        """Take a message of this height in. Call `step` next."""
        if isinstance(message, Prepare | Propose) and not self.electorate.votes_here:
            return []  # Announcements also reach nodes without a vote.
        if not self.electorate.votes_here or sender not in self.electorate.names:
            return [
                Note(f"{sender} sent a vote message for a height in which one of us has no vote")
            ]
        match message:
            case Prepare():
                return self._on_prepare(sender, message, now)
            case Promise():
                return self._on_promise(sender, message)
            case Propose():
                return self._on_propose(message)
            case Accept():
                return self._on_accept(sender, message)
            case Refused():
                return self._on_refused(sender, message)
            case _:
                assert_never(message)

    def _on_prepare(self, sender: PeerId, message: Prepare, now: float) -> list[Effect]:
        fault = self._leader_fault(sender, message.round)
        if message.round == 0:
            fault = "the first round needs no promises"
        elif not fault and message.round > self.round and self.turns.is_hurried_by(sender, now):
            fault = "it ends a round too early"
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
        fault = self._leading.take_promise(sender, promise)
        return [Note(f"a promise of {sender} does not count: {fault}")] if fault else []

    def _on_propose(self, message: Propose) -> list[Effect]:
        """Take a proposal in. Its signature says who proposes, whoever passes it on."""
        accepted, round = self.acceptor.accepted, message.round
        proposer = self.electorate.proposer(round)
        if message == self.pending or proposer == self.electorate.me:
            return []
        fault = self._proposal_fault(message)
        if fault:
            return [Note(f"a proposal for {proposer}'s round {round} does not count: {fault}")]
        if accepted is not None and accepted.round == round:
            return self._on_proposed_again(proposer, message, accepted)
        if round < self.acceptor.promised:
            return [self._refusal(proposer, round, "a later round is promised")]
        if round > 0:
            fault = self.electorate.proofs_fault(round, message.entry, message.promises)
            if fault:
                return [Note(f"{proposer} proposes in round {round}: {fault}")]
        self._enter(round)
        self.pending = message
        return []

    def _proposal_fault(self, message: Propose) -> str:
        entry, round = message.entry, message.round
        if not self.electorate.proposed(round, entry.digest, message.signature):
            return "its proposer has not signed it"
        if entry.parent != self.electorate.parent:
            return "it is of another chain"
        return "that round is absurd" if round > self.round + ROUND_JUMP_MAX else ""

    def _on_proposed_again(
        self, proposer: PeerId, message: Propose, accepted: Accepted
    ) -> list[Effect]:
        if message.entry != accepted.entry:
            return [Note(f"{proposer} proposes two entries in round {message.round}")]
        vote = self.electorate.vote(message.round, message.entry)
        return [Send(proposer, Accept(vote))]

    def _on_accept(self, sender: PeerId, message: Accept) -> list[Effect]:
        fault = self._leading.take_vote(sender, message.vote)
        self.outcome = self.outcome or self._leading.outcome()
        return [Note(f"a vote of {sender} does not count: {fault}")] if fault else []

    def _on_refused(self, sender: PeerId, message: Refused) -> list[Effect]:
        if message.promised > self.round + ROUND_JUMP_MAX or message.round > self.round:
            return []
        if message.round == self.round < message.promised:
            self._refusals[sender] = message.promised
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
        """Do what time and new messages allow: vote, lead a round, go on to the next, repeat."""
        if not self.electorate.votes_here or self.outcome is not None:
            return []
        if counsel.wish.value is None:
            self._wanting_since = None
        elif self._wanting_since is None:
            self._wanting_since = now
        effects = self._consider_pending(counsel, now)
        self._heed_refusals(counsel.down)
        if self.is_due(counsel):
            self._follow_rounds(counsel.down, now)
            if self.electorate.proposer(self.round) == self.electorate.me:
                effects += self._lead(counsel, now)
        else:
            self.turns.stop()
        if self._resend.take(now):
            effects += self._leading.to_silent()
        if self._fetch.due_at is not None and self._fetch.due_at <= now:
            self._fetch.stop()  # This node no longer waits for those bytes.
        return effects

    def next_deadline(self) -> float | None:
        return earliest(self.turns.ends_at, self._resend.due_at, self._fetch.due_at)

    def is_due(self, counsel: Counsel) -> bool:
        """Return whether there is anything to decide. If not, `step` at most repeats messages."""
        begun = self.pending is not None or self.acceptor.accepted is not None
        return begun or counsel.wish.value is not None

    def _consider_pending(self, counsel: Counsel, now: float) -> list[Effect]:
        proposal = self.pending
        if proposal is None:
            return []
        proposer = self.electorate.proposer(proposal.round)
        verdict = self._judged(proposal.entry, proposal.promises, counsel, now, proposer)
        if verdict.answer is Answer.LATER:
            return self._wait(verdict, proposer, counsel, now)
        self.pending = None
        self._fetch.stop()
        if verdict.answer is Answer.NO:
            return self._refuse(proposer, proposal.round, verdict)
        record = self.acceptor.accept(proposal.round, proposal.entry, proposal.signature)
        vote = self.electorate.vote(proposal.round, proposal.entry)
        return [Persist(record), Send(proposer, Accept(vote))]

    def _refuse(self, proposer: PeerId, round: int, verdict: Verdict) -> list[Effect]:
        effects: list[Effect] = [self._refusal(proposer, round, verdict.reason)]
        if verdict.evidence is not None:
            effects.append(Send(proposer, Accusation(verdict.evidence)))
        return [*effects, Note(f"no vote for {proposer}'s proposal: {verdict.reason}")]

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

    def _heed_refusals(self, down: AbstractSet[PeerId]) -> None:
        """Leave a round in which too few can still vote, since the others have promised later ones.
        The claim of a single voter ends no round that the rest can decide.
        """
        for round in sorted(set(self._refusals.values()), reverse=True):
            ahead = {voter for voter, promised in self._refusals.items() if promised >= round}
            if not self.electorate.reached(self.electorate.names - down - ahead):
                return self._enter(round)

    def _follow_rounds(self, down: AbstractSet[PeerId], now: float) -> None:
        """Go to the next round when this one is over, and skip proposers that are down.

        While too few voters are up, stay: no round can decide then, and using rounds up helps
        nobody.
        """
        expired = self.turns.expired(now)
        is_over = expired or self.electorate.proposer(self.round) in down
        if is_over and self.electorate.reached(self.electorate.names - down):
            if expired:
                self.turns.lapse(self.round)
                self._enter(self.round + 1)
            while self.electorate.proposer(self.round) in down:
                self._enter(self.round + 1)
        self.turns.begin(self.round, now)

    def _enter(self, round: int) -> None:
        """Enter `round` if it is later, and end everything that belongs to an earlier one."""
        if round <= self.round:
            return
        self.round = round
        self.stage = Stage.IDLE
        self._leading = Leading(self.electorate, round)
        self._refusals = {}
        self.turns.stop()
        self._resend.stop()
        self._fetch.stop()

    def _promise(self, round: int) -> bytes:
        """Promise `round`, and drop a pending proposal of an earlier round."""
        record = self.acceptor.promise(round)
        if self.pending is not None and self.pending.round < round:
            self.pending = None
        return record

    def _lead(self, counsel: Counsel, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.stage is Stage.IDLE:
            effects += self._start_leading(now)
        if self.stage is Stage.PREPARING and self._leading.is_promised:
            effects += self._propose_something(counsel, now)
        return effects

    def _start_leading(self, now: float) -> list[Effect]:
        if self.round == 0:
            self.stage = Stage.PREPARING
            return []
        if self.acceptor.promised >= self.round:
            self.stage = Stage.SPENT
            return []
        record = self._promise(self.round)
        self.stage = Stage.PREPARING
        mine = self.electorate.promise(self.round, self.acceptor.accepted)
        self._leading.count_promise(self.electorate.me, mine)
        self._resend.start(now)
        return [Persist(record), *self._leading.to_silent()]

    def _propose_something(self, counsel: Counsel, now: float) -> list[Effect]:
        def unusable(entry: Entry, promises: Promises) -> bool:
            verdict = self._judged(entry, promises, counsel, now, self.electorate.me)
            return verdict.answer is not Answer.YES

        accepted = self.acceptor.accepted
        if self.round == 0 and accepted is not None:
            return self._propose(self.electorate.proposal(0, accepted.entry), counsel, now)
        forced, promises = self._leading.choice(unusable)
        entry = self._entry(counsel) if forced is None else forced
        if entry is None:
            return []
        return self._propose(self.electorate.proposal(self.round, entry, promises), counsel, now)

    def _entry(self, counsel: Counsel) -> Entry | None:
        value = counsel.wish.value
        if value is None:
            return None
        return Entry(self.electorate.height, self.electorate.parent, counsel.complete(value))

    def _propose(self, proposal: Propose, counsel: Counsel, now: float) -> list[Effect]:
        """Accept the proposal here, durably, and only then ask others to (SPEC.md R4)."""
        effects: list[Effect] = []
        mine = Accepted(proposal.round, proposal.entry, proposal.signature)
        if self.acceptor.accepted != mine:
            known = (proposal.entry, proposal.promises, counsel, now)
            verdict = self._judged(*known, self.electorate.me)
            if verdict.answer is not Answer.YES:
                return self._wait(verdict, self.electorate.me, counsel, now)
            effects.append(Persist(self.acceptor.accept(mine.round, mine.entry, mine.signature)))
        self._fetch.stop()
        self.stage = Stage.PROPOSED
        self._leading.propose(proposal, self.electorate.me)
        self._resend.start(now)
        self.outcome = self._leading.outcome()
        others = [voter for voter in self.electorate.voters if voter != self.electorate.me]
        for evidence in counsel.causes(proposal.entry.value):
            effects += [Send(voter, Accusation(evidence)) for voter in others]
        return [*effects, *self._leading.to_silent()]

    def _judged(
        self, entry: Entry, promises: Promises, counsel: Counsel, now: float, proposer: PeerId
    ) -> Verdict:
        """Judge `entry`, proposed by `proposer` in this round with these promises.

        The promises that force it are doubtful if a quorum of them had accepted nothing (then
        nothing was chosen), or, for some time, if they leave out a voter that is up.
        """
        late = self._is_late(now)
        forced = forced_by(promises) is not None
        free = {proof.voter for proof in promises if proof.accepted is None}
        left_out = self.electorate.names - counsel.down - {proof.voter for proof in promises}
        doubtful = self.electorate.reached(free) or (bool(left_out) and not late)
        author = author_of(self.electorate, promises, proposer)
        known = (entry.value, now)
        return counsel.judge(*known, forced=forced, doubtful=doubtful, late=late, proposer=author)

    def _is_late(self, now: float) -> bool:
        """Return whether every voter has had a turn since this node knew something to decide.
        Before that, no honest voter need have proposed anything.
        """
        count = 1 + min(len(self.electorate.voters), DOUBTFUL_ROUNDS)
        patience_s = rounds_s(self.electorate.rules.round_timeout_s, count)
        return self._wanting_since is not None and now >= self._wanting_since + patience_s

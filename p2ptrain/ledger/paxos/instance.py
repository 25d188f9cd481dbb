"""The consensus of one height at one node. The node votes, and leads rounds when it is its turn.

        round 0                            round r > 0
    IDLE ──own accept──► PROPOSED    IDLE ──own promise──► PREPARING ──own accept──► PROPOSED
                                       └─ promised by an earlier process ─► SPENT
    a quorum of votes in PROPOSED sets `outcome`; a later round resets the stage to IDLE

SPEC.md R1–R6 are implemented here, in `acceptor` (durable promises and votes) and in `proposer`
(promises and votes that a proposer collects). This module does not know what entries mean: a
HeightPolicy says what to propose and what to accept.
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
    ShowClaim,
    VoteMessage,
)
from p2ptrain.ledger.paxos.acceptor import Acceptor
from p2ptrain.ledger.paxos.electorate import Electorate, forced_by, not_backing
from p2ptrain.ledger.paxos.height_policy import Answer, HeightPolicy, Judgement
from p2ptrain.ledger.paxos.proposer import Promises, Proposer, author_of
from p2ptrain.ledger.paxos.timers import Repeater, earliest, rounds_s
from p2ptrain.ledger.paxos.turns import Turns

ROUND_JUMP_MAX = 1 << 20
"""Messages about rounds further ahead than this are ignored. Otherwise a peer could name the
highest round that can be encoded, and no later round would be left.
"""

DOUBTFUL_ROUNDS = 8
"""Number of rounds for which a voter refuses doubtful proposals (SPEC.md R5). With fewer voters, it
is the number of voters. By then, enough proposers have had time to ask all voters for promises, and
a voter that is up but silent must not block the others any longer. The limit is enforced as a
duration, since a proposer can claim any round number.
"""


class Stage(Enum):
    IDLE = "idle"
    PREPARING = "preparing"
    PROPOSED = "proposed"
    SPENT = "spent"


class Instance:
    """The state of one height. `receive` handles messages about it; `step` then votes and proposes.

    `round` is this node's current round, and `stage` how far this node got as its proposer.
    `pending` is a proposal that waits until this node may accept it. `outcome` is the decided
    entry.
    """

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
        self._proposer = Proposer(electorate, self.round)
        self._resend = Repeater()
        self._fetch = Repeater()
        self._said = ""
        self._wanting_since: float | None = None
        self._refusals: dict[PeerId, int] = {}

    # ── messages from other voters ───────────────────────────────────────────────────────────────

    def receive(self, sender: PeerId, message: VoteMessage, now: float) -> list[Effect]:
        """Handle a message about this height. Call `step` afterwards."""
        if isinstance(message, Prepare | Propose) and not self.electorate.votes_here:
            return []  # Announcements also reach nodes without a vote.
        if not self.electorate.votes_here or sender not in self.electorate.names:
            return [
                Note(f"ignoring a message of {sender}: it or this node has no vote at this height")
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
            fault = "the first round does not need promises"
        elif not fault and message.round > self.round and self.turns.is_hurried_by(sender, now):
            fault = "it recently ended another round early"
        if fault:
            return [Note(f"{sender} prepares round {message.round}: {fault}")]
        if message.round < self.acceptor.promised:
            return [self._refusal(sender, message.round, "this node has promised a later round")]
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
        fault = self._proposer.add_promise(sender, promise)
        return [Note(f"ignoring a promise of {sender}: {fault}")] if fault else []

    def _on_propose(self, message: Propose) -> list[Effect]:
        """Handle a proposal. Its signature shows who made it, so any peer may forward it."""
        accepted, round = self.acceptor.accepted, message.round
        proposer = self.electorate.proposer(round)
        if message == self.pending or proposer == self.electorate.me:
            return []
        fault = self._proposal_fault(message)
        if fault:
            return [Note(f"ignoring a proposal for {proposer}'s round {round}: {fault}")]
        if accepted is not None and accepted.round == round:
            return self._on_proposed_again(proposer, message, accepted)
        if round < self.acceptor.promised:
            return [self._refusal(proposer, round, "this node has promised a later round")]
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
            return "the proposer's signature is wrong"
        if entry.parent != self.electorate.parent:
            return "it is for a different chain"
        return "the round is far too high" if round > self.round + ROUND_JUMP_MAX else ""

    def _on_proposed_again(
        self, proposer: PeerId, message: Propose, accepted: Accepted
    ) -> list[Effect]:
        if message.entry != accepted.entry:
            return [Note(f"{proposer} proposes two different entries in round {message.round}")]
        vote = self.electorate.vote(message.round, message.entry)
        return [Send(proposer, Accept(vote))]

    def _on_accept(self, sender: PeerId, message: Accept) -> list[Effect]:
        fault = self._proposer.add_vote(sender, message.vote)
        self.outcome = self.outcome or self._proposer.outcome()
        return [Note(f"ignoring a vote of {sender}: {fault}")] if fault else []

    def _on_refused(self, sender: PeerId, message: Refused) -> list[Effect]:
        if message.promised > self.round + ROUND_JUMP_MAX or message.round > self.round:
            return []
        if message.round == self.round < message.promised:
            self._refusals[sender] = message.promised
        return [Note(f"{sender} refuses round {message.round}: {message.reason}")]

    def _leader_fault(self, sender: PeerId, round: int) -> str:
        if self.electorate.proposer(round) != sender:
            return "it is a different voter's turn"
        return "the round is far too high" if round > self.round + ROUND_JUMP_MAX else ""

    def _refusal(self, peer: PeerId, round: int, reason: str) -> Send:
        height, promised = self.electorate.height, self.acceptor.promised
        return Send(peer, Refused(height, round, promised, reason))

    # ── this node's steps ────────────────────────────────────────────────────────────────────────

    def step(self, policy: HeightPolicy, now: float) -> list[Effect]:
        """Do what time and messages now allow: vote, propose, enter a later round, or repeat."""
        if not self.electorate.votes_here or self.outcome is not None:
            return []
        if policy.wanted is None:
            self._wanting_since = None
        elif self._wanting_since is None:
            self._wanting_since = now
        effects = self._consider_pending(policy, now)
        self._heed_refusals(policy.down)
        if self.is_due(policy):
            self._follow_rounds(policy.down, now)
            if self.electorate.proposer(self.round) == self.electorate.me:
                effects += self._lead(policy, now)
        else:
            self.turns.stop()
        if self._resend.fires(now):
            effects += self._proposer.to_silent()
        if self._fetch.due_at is not None and self._fetch.due_at <= now:
            self._fetch.stop()  # This node no longer waits for those bytes.
        return effects

    def next_deadline(self) -> float | None:
        return earliest(self.turns.ends_at, self._resend.due_at, self._fetch.due_at)

    def is_due(self, policy: HeightPolicy) -> bool:
        """Return whether there is anything to decide. If not, `step` only resends messages."""
        begun = self.pending is not None or self.acceptor.accepted is not None
        return begun or policy.wanted is not None

    def _consider_pending(self, policy: HeightPolicy, now: float) -> list[Effect]:
        proposal = self.pending
        if proposal is None:
            return []
        proposer = self.electorate.proposer(proposal.round)
        judgement = self._judged(proposal.entry, proposal.promises, policy, now, proposer)
        if judgement.answer is Answer.LATER:
            return self._wait(judgement, proposer, policy, now)
        self.pending = None
        self._fetch.stop()
        if judgement.answer is Answer.NO:
            return self._refuse(proposer, proposal.round, judgement)
        record = self.acceptor.accept(proposal.round, proposal.entry, proposal.signature)
        vote = self.electorate.vote(proposal.round, proposal.entry)
        return [Persist(record), Send(proposer, Accept(vote))]

    def _refuse(self, proposer: PeerId, round: int, judgement: Judgement) -> list[Effect]:
        effects: list[Effect] = [self._refusal(proposer, round, judgement.reason)]
        if judgement.evidence is not None:
            effects.append(Send(proposer, Accusation(judgement.evidence)))
        effects += shown_to(proposer, judgement)
        return [*effects, Note(f"no vote for {proposer}'s proposal: {judgement.reason}")]

    def _wait(
        self, judgement: Judgement, proposer: PeerId, policy: HeightPolicy, now: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        if judgement.reason != self._said:
            self._said = judgement.reason
            effects += [Note(f"no vote yet: {judgement.reason}"), *shown_to(proposer, judgement)]
        if judgement.fetch is None:
            self._fetch.stop()
        elif self._fetch.due_at is None or self._fetch.fires(now):
            if self._fetch.due_at is None:
                self._fetch.start(now)
            holders = policy.holders(judgement.fetch, proposer)
            effects.append(FetchUpdate(judgement.fetch, holders))
        return effects

    def _heed_refusals(self, down: AbstractSet[PeerId]) -> None:
        """Enter a later round if so many voters have promised it that the remaining ones can no
        longer decide the current round. While they can, stay: a liar may claim to have promised.
        """
        for round in sorted(set(self._refusals.values()), reverse=True):
            ahead = {voter for voter, promised in self._refusals.items() if promised >= round}
            if not self.electorate.reached(self.electorate.names - down - ahead):
                return self._enter(round)

    def _follow_rounds(self, down: AbstractSet[PeerId], now: float) -> None:
        """Enter the next round when this one is over, and skip proposers that are down. If the
        voters that are up are not a quorum, stay, since no round could decide anything.
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
        """Enter `round`, with a fresh state, if it is later than the current round."""
        if round <= self.round:
            return
        self.round = round
        self.stage = Stage.IDLE
        self._proposer = Proposer(self.electorate, round)
        self._refusals = {}
        self.turns.stop()
        self._resend.stop()
        self._fetch.stop()

    def _promise(self, round: int) -> bytes:
        """Promise `round`, and drop a pending proposal of an earlier round. Return the record."""
        record = self.acceptor.promise(round)
        if self.pending is not None and self.pending.round < round:
            self.pending = None
        return record

    def _lead(self, policy: HeightPolicy, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.stage is Stage.IDLE:
            effects += self._start_leading(now)
        if self.stage is Stage.PREPARING and self._proposer.is_promised:
            effects += self._propose_something(policy, now)
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
        self._proposer.count_promise(self.electorate.me, mine)
        self._resend.start(now)
        return [Persist(record), *self._proposer.to_silent()]

    def _propose_something(self, policy: HeightPolicy, now: float) -> list[Effect]:
        def unusable(entry: Entry, promises: Promises) -> bool:
            judgement = self._judged(entry, promises, policy, now, self.electorate.me)
            return judgement.answer is not Answer.YES

        accepted = self.acceptor.accepted
        if self.round == 0 and accepted is not None:
            return self._propose(self.electorate.proposal(0, accepted.entry), policy, now)
        entry, promises = self._proposer.choice(unusable)
        if entry is None:
            if policy.wanted is None:
                return []
            value = policy.complete(policy.wanted)
            entry = Entry(self.electorate.height, self.electorate.parent, value)
        return self._propose(self.electorate.proposal(self.round, entry, promises), policy, now)

    def _propose(self, proposal: Propose, policy: HeightPolicy, now: float) -> list[Effect]:
        """Durably accept the proposal on this node first, then ask others (SPEC.md R4)."""
        effects: list[Effect] = []
        mine = Accepted(proposal.round, proposal.entry, proposal.signature)
        if self.acceptor.accepted != mine:
            known = (proposal.entry, proposal.promises, policy, now)
            judgement = self._judged(*known, self.electorate.me)
            if judgement.answer is not Answer.YES:
                return self._wait(judgement, self.electorate.me, policy, now)
            effects.append(Persist(self.acceptor.accept(mine.round, mine.entry, mine.signature)))
        self._fetch.stop()
        self.stage = Stage.PROPOSED
        self._proposer.propose(proposal, self.electorate.me)
        self._resend.start(now)
        self.outcome = self._proposer.outcome()
        others = [voter for voter in self.electorate.voters if voter != self.electorate.me]
        for evidence in policy.causes(proposal.entry.value):
            effects += [Send(voter, Accusation(evidence)) for voter in others]
        return [*effects, *self._proposer.to_silent()]

    def _judged(
        self, entry: Entry, promises: Promises, policy: HeightPolicy, now: float, proposer: PeerId
    ) -> Judgement:
        """Judge `entry`, which `proposer` proposes in this round with these promises.

        Even if the promises force `entry`, it is doubtful in two cases. The promises that do not
        back it come from a quorum, so it was not chosen (`not_backing`). Or the promise of a voter
        that is up is missing, and the doubt period is not over (`_is_late`).
        """
        late, forced = self._is_late(now), forced_by(promises)
        others = {proof.voter for proof in not_backing(promises, forced)}
        left_out = self.electorate.names - policy.down - {proof.voter for proof in promises}
        doubtful = self.electorate.reached(others) or (bool(left_out) and not late)
        author = author_of(self.electorate, promises, proposer)
        return policy.judge(
            entry.value,
            now,
            forced=forced is not None,
            doubtful=doubtful,
            late=late,
            proposer=author,
        )

    def _is_late(self, now: float) -> bool:
        """Return whether the doubt period is over: since this node first had something to propose,
        every voter (or DOUBTFUL_ROUNDS of them) has had a turn to propose.
        """
        count = 1 + min(len(self.electorate.voters), DOUBTFUL_ROUNDS)
        patience_s = rounds_s(self.electorate.rules.round_timeout_s, count)
        return self._wanting_since is not None and now >= self._wanting_since + patience_s


def shown_to(proposer: PeerId, judgement: Judgement) -> list[Effect]:
    """Return the messages with claims that the proposer does not seem to know."""
    said = [(report.peer, report.claim) for report in judgement.shows]
    return [Send(proposer, ShowClaim(peer, claim)) for peer, claim in said if claim is not None]

"""Check that honest voters vote only for entries that the round's proposer signed and was allowed
to propose (R3 and R5 in SPEC.md)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import LineId, promise_message, vote_message
from p2ptrain.ledger.messages.messages import Accept, Message, Promise, PromiseProof, Propose
from p2ptrain.simulation.checkers.lines import Lines
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.disk import SimDisk, verify

Proposal = tuple[LineId, int, int, Digest]
"""Line, height and round of a proposal, and the digest of its entry."""


@dataclass(slots=True)
class _WatchProposals(Watch):
    """Base class that remembers the voters of each height, which determine its proposers."""

    lines: Lines
    rules: Rules
    liars: frozenset[PeerId] = frozenset()
    voters: dict[tuple[LineId, int], tuple[PeerId, ...]] = field(default_factory=dict)

    def on_decision(self, decision: Decision) -> None:
        after = decision.after
        self.voters[after.line, after.height + 1] = after.voters

    def voters_at(self, line: LineId, height: int) -> tuple[PeerId, ...]:
        return self.voters.get((line, height), self.rules.founders)


@dataclass(slots=True)
class ProposalsAreSigned(_WatchProposals):
    """R3, R5: an honest voter votes only for entries that the round's proposer has signed, and
    names only such entries in its promises. So two entries in one round always prove that the
    proposer lied.

    A signature is checked only when an honest voter supports the proposal. Liars can send messages
    about heights that no node has reached, so the voters of that height may be unknown earlier.
    """

    shown: dict[Proposal, set[bytes]] = field(default_factory=dict)

    def on_vote(self, voter: PeerId, message: Message, disk: SimDisk) -> None:
        if isinstance(message, Propose):
            line, height = self.lines.of_proposal(message), message.height
            proposal = (line, height, message.round, message.entry.digest)
            self._note(proposal, message.signature)
            for proof in message.promises:
                if proof.accepted_round is not None and proof.accepted is not None:
                    claim = (line, height, proof.accepted_round, proof.accepted)
                    self._note(claim, proof.proposed or b"")
                    self._require(voter, claim)
        elif isinstance(message, Promise) and message.accepted is not None:
            had, said = message.accepted, self.lines.of_promise(voter, message)
            if said is not None:
                proposal = (said, message.height, had.round, had.entry.digest)
                self._note(proposal, had.signature)
                self._require(voter, proposal)
        elif isinstance(message, Accept):
            vote = message.vote
            self._require(voter, (vote.line, vote.height, vote.round, vote.entry))

    def _note(self, proposal: Proposal, signature: bytes) -> None:
        self.shown.setdefault(proposal, set()).add(signature)

    def _is_signed(self, proposal: Proposal) -> bool:
        line, height, *_ = proposal
        voters = self.voters_at(line, height)
        return any(is_signed(voters, proposal, it) for it in self.shown.get(proposal, ()))

    def _require(self, voter: PeerId, proposal: Proposal) -> None:
        _, height, round, entry = proposal
        if voter not in self.liars and not self._is_signed(proposal):
            where = f"round {round} at height {height}"
            self.object(
                f"{voter} supports {entry[:8]} in {where}, but the proposer did not sign it"
            )


@dataclass(slots=True)
class ProposalsAreEntitled(_WatchProposals):
    """R5: in a later round an honest voter votes only for a proposal with the promises of a quorum,
    and only for an entry that these promises allow. A promise counts only if a voter signed it. If
    it names an entry, that entry must have been proposed in an earlier round."""

    shown: dict[Proposal, list[Propose]] = field(default_factory=dict)

    def on_vote(self, voter: PeerId, message: Message, disk: SimDisk) -> None:
        if isinstance(message, Propose):
            if message.round > 0:
                line = self.lines.of_proposal(message)
                place = (line, message.height, message.round, message.entry.digest)
                known = self.shown.setdefault(place, [])
                known += [] if message in known else [message]
        elif isinstance(message, Accept) and message.vote.round > 0 and voter not in self.liars:
            vote = message.vote
            shown = self.shown.get((vote.line, vote.height, vote.round, vote.entry), ())
            if not any(self._is_entitled(it) for it in shown):
                where = f"round {vote.round} at height {vote.height}"
                self.object(f"{voter} votes for {vote.entry[:8]} in {where} without promises")

    def _is_entitled(self, proposal: Propose) -> bool:
        line = self.lines.of_proposal(proposal)
        voters = self.voters_at(line, proposal.height)
        good = [it for it in proposal.promises if _counts(line, voters, proposal, it)]
        claims = [(it.accepted_round, it.accepted) for it in good if it.accepted_round is not None]
        last = max((round for round, _ in claims), default=None)
        latest = {entry for round, entry in claims if round == last}
        return is_quorum(self.rules, voters, {it.voter for it in good}) and (
            not claims or proposal.entry.digest in latest
        )


def _counts(
    line: LineId, voters: Sequence[PeerId], proposal: Propose, promise: PromiseProof
) -> bool:
    """Return whether `promise` counts for `proposal`."""
    height, last, entry = proposal.height, promise.accepted_round, promise.accepted
    said = promise_message(line, height, proposal.round, last, entry)
    if promise.voter not in voters or not verify(promise.voter, said, promise.signature):
        return False
    if last is None or entry is None:
        return last is None and entry is None  # On the wire, both are present or neither.
    claim = (line, height, last, entry)
    return last < proposal.round and is_signed(voters, claim, promise.proposed or b"")


def is_signed(voters: Sequence[PeerId], proposal: Proposal, signature: bytes) -> bool:
    """Return whether the proposer of that round has signed the proposal."""
    line, height, round, entry = proposal
    proposer = voters[(height + round) % len(voters)]
    return verify(proposer, vote_message(line, height, round, entry), signature)


def is_quorum(rules: Rules, voters: Sequence[PeerId], present: Collection[PeerId]) -> bool:
    """Return whether `present` is a quorum. This does not use the ledger's code, which may have a
    bug."""
    good = len({voter for voter in voters if voter in present})
    if rules.quorum == "two-thirds":
        return 3 * good > 2 * len(voters)
    return 2 * good + (1 if voters[0] in present else 0) > len(voters)

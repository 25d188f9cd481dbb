"""The voters of one height: who proposes, what is a quorum, which signatures are valid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Sign, Verify
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Certificate,
    Certified,
    Entry,
    LineId,
    Vote,
    promise_message,
    vote_message,
)
from p2ptrain.ledger.messages.messages import Accepted, Promise, PromiseProof, Propose

PROPOSALS_KEPT = 64
"""Maximum number of proposals of one height that are remembered as correctly signed. If there are
more, all are forgotten, and their signatures are checked again when needed.
"""


@dataclass(frozen=True, slots=True)
class Electorate:
    """The ranked voters whose quorum decides `height` of `line`; `me` may be one of them.

    `silent`: this process must not vote, because another process may be voting with its identity,
    or the disk has lost entries at heights where this node voted.
    """

    rules: Rules
    line: LineId
    height: int
    parent: Digest
    voters: tuple[PeerId, ...]
    me: PeerId
    sign: Sign
    verify: Verify
    silent: bool = False
    names: frozenset[PeerId] = field(init=False)
    _genuine: set[tuple[int, Digest, bytes]] = field(
        init=False, default_factory=set, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(self.voters))

    @staticmethod
    def after(
        state: LedgerState,
        rules: Rules,
        me: PeerId,
        sign: Sign,
        verify: Verify,
        *,
        silent: bool = False,
    ) -> Electorate:
        """Return the electorate of the height that follows `state`."""
        height, head = state.height + 1, state.head
        return Electorate(
            rules, state.line, height, head, state.voters, me, sign, verify, silent=silent
        )

    @property
    def votes_here(self) -> bool:
        return self.me in self.names and not self.silent

    def proposer(self, round: int) -> PeerId:
        return quorum.proposer(self.voters, self.height, round)

    def reached(self, present: AbstractSet[PeerId]) -> bool:
        """Return whether `present` is a quorum. All peers in `present` must be voters: this
        function only counts them, since it is called for each vote.
        """
        count, first = len(present), self.voters[0] in present
        return quorum.is_enough(self.rules.quorum, len(self.voters), count, first_present=first)

    def vote(self, round: int, entry: Entry) -> Vote:
        signature = self.sign(vote_message(self.line, self.height, round, entry.digest))
        return Vote(self.line, self.height, round, entry.digest, self.me, signature)

    def vote_fault(self, sender: PeerId, vote: Vote) -> str:
        """Return the reason why `vote`, sent by `sender`, is not valid; empty if it is valid."""
        if vote.line != self.line:
            return "it is for a different run or line"
        if vote.height != self.height:
            return f"it is for height {vote.height}"
        if vote.voter != sender or sender not in self.names:
            return "its sender is not a voter of this height"
        return "" if self.verify(sender, vote.message, vote.signature) else "its signature is wrong"

    def proposal(
        self, round: int, entry: Entry, promises: tuple[PromiseProof, ...] = ()
    ) -> Propose:
        """Return this node's proposal of `entry`. Make its acceptance durable before sending it."""
        return Propose(round, entry, self.vote(round, entry).signature, promises)

    def proposed(self, round: int, entry: Digest, signature: bytes) -> bool:
        """Return whether `signature` proves that the proposer of `round` voted for `entry` in that
        round. Many promises contain the same proof; its signature is checked only once.
        """
        proposal = (round, entry, signature)
        if proposal in self._genuine:
            return True
        message = vote_message(self.line, self.height, round, entry)
        if not self.verify(self.proposer(round), message, signature):
            return False
        if len(self._genuine) >= PROPOSALS_KEPT:
            self._genuine.clear()
        self._genuine.add(proposal)
        return True

    def promise(self, round: int, accepted: Accepted | None) -> Promise:
        signature = self.sign(self._promise_message(round, _summary(accepted)))
        return Promise(self.height, round, accepted, signature)

    def promise_fault(self, sender: PeerId, promise: Promise) -> str:
        if sender not in self.names:
            return "its sender is not a voter of this height"
        accepted = promise.accepted
        if accepted is not None and not self._fits(accepted, promise.round):
            return "the entry that it reports as accepted is not valid at this height"
        fault = self.claim_fault(promise.round, proof_of(sender, promise))
        if fault:
            return fault
        message = self._promise_message(promise.round, _summary(accepted))
        return "" if self.verify(sender, message, promise.signature) else "its signature is wrong"

    def claim_fault(self, round: int, proof: PromiseProof) -> str:
        """Return the reason why the voter cannot have accepted the entry that its promise of
        `round` claims; empty if it can have accepted it, or claims none.
        """
        last, entry, proposed = proof.accepted_round, proof.accepted, proof.proposed
        if last is None or entry is None or proposed is None:
            return ""
        if last >= round or not self.proposed(last, entry, proposed):
            return f"{proof.voter} claims to have accepted an entry that was never proposed"
        return ""

    def proofs_fault(self, round: int, entry: Entry, proofs: Sequence[PromiseProof]) -> str:
        """Return why these promises do not allow `entry` in `round`; empty if they do."""
        names = {proof.voter for proof in proofs}
        if len(names) != len(proofs) or not names <= self.names or not self.reached(names):
            return "it lacks the promises of a quorum"
        for proof in proofs:
            fault = self._proof_fault(round, proof)
            if fault:
                return fault
        forced = forced_by(proofs)
        return "" if forced in (None, entry.digest) else f"the promises require entry {forced}"

    def certified(self, round: int, entry: Entry, votes: Mapping[PeerId, bytes]) -> Certified:
        certificate = Certificate(self.height, round, entry.digest, tuple(sorted(votes.items())))
        return Certified(entry, certificate)

    def _proof_fault(self, round: int, proof: PromiseProof) -> str:
        message = self._promise_message(round, (proof.accepted_round, proof.accepted))
        if not self.verify(proof.voter, message, proof.signature):
            return f"the signature of {proof.voter}'s promise is wrong"
        return self.claim_fault(round, proof)

    def _fits(self, accepted: Accepted, round: int) -> bool:
        entry = accepted.entry
        return accepted.round < round and (entry.height, entry.parent) == (self.height, self.parent)

    def _promise_message(self, round: int, accepted: tuple[int | None, Digest | None]) -> bytes:
        return promise_message(self.line, self.height, round, *accepted)


def proof_of(voter: PeerId, promise: Promise) -> PromiseProof:
    accepted = promise.accepted
    proposed = None if accepted is None else accepted.signature
    return PromiseProof(voter, *_summary(accepted), proposed, promise.signature)


def not_backing(proofs: Sequence[PromiseProof], forced: Digest | None) -> tuple[PromiseProof, ...]:
    """Return the promises that do not show the entry `forced` as accepted in the highest round; all
    promises if `forced` is None.

    Their voters did not vote for it in that round, and never will. So if they are a quorum, the
    entry was not chosen in that round, since any two quorums share a voter. (If it was chosen in an
    earlier round, one of them shows it for that round.)
    """
    rounds = [it.accepted_round or 0 for it in proofs if it.accepted == forced]
    backing = max(rounds, default=0), forced
    return tuple(it for it in proofs if (it.accepted_round, it.accepted) != backing)


def forced_by(proofs: Sequence[PromiseProof]) -> Digest | None:
    """Return the entry that must be proposed after these promises: the one that was accepted in the
    highest round, since a quorum may already have chosen it. Return None if no promise names an
    accepted entry: then the proposer may propose any entry.

    A lying proposer may have had two entries accepted in that round. Then these promises prove the
    lie, and the entry that more voters name is returned. The other entry may have been chosen all
    the same, if a voter's claim is false (SPEC.md, "What a lying voter can do").
    """
    accepted = [(p.accepted_round, p.accepted) for p in proofs if p.accepted_round is not None]
    highest = max((round for round, _ in accepted), default=None)
    counts = Counter(entry for round, entry in accepted if round == highest and entry is not None)
    return min(counts, key=lambda entry: (-counts[entry], entry), default=None)


def _summary(accepted: Accepted | None) -> tuple[int | None, Digest | None]:
    return (None, None) if accepted is None else (accepted.round, accepted.entry.digest)

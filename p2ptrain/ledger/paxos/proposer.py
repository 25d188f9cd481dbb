"""The state of a proposer while it leads one round: the promises and votes that it has received,
and its proposal. This state is not stored on disk.

    PREPARING ──quorum of promises, something to propose──► PROPOSED ──quorum of votes──► an outcome

Round 0 starts without promises. After a restart, a proposer never continues a later round that it
led before (SPEC.md R4). Its own promises and votes are in its `Acceptor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Certified, Entry, Vote
from p2ptrain.ledger.messages.effects import Announce, Effect, Send
from p2ptrain.ledger.messages.messages import (
    Message,
    Prepare,
    Promise,
    PromiseProof,
    Propose,
)
from p2ptrain.ledger.paxos.electorate import Electorate, forced_by, not_backing, proof_of

UNICASTS_MAX = 32
"""Maximum number of voters that get unicast messages from a proposer. Unicast takes one network
delay. If there are more voters, they get the message by gossip. A roster names all members, so
unicast bytes grow with the square of their number: 130 kB for 32 voters, 124 MB for 1,000. With
gossip, every peer sends about six copies.
"""

Promises = tuple[PromiseProof, ...]

Unusable = Callable[[Entry, Promises], bool]
"""unusable(entry, promises) returns whether this node cannot accept `entry`, which these promises
force: for example, it lacks the update, or its own results contradict the entry.
"""


def author_of(electorate: Electorate, promises: Promises, proposer: PeerId) -> PeerId:
    """Return the peer that first chose the entry proposed by `proposer` with these promises. It led
    the highest round in which they show an accepted entry. If they show none, it is `proposer`.
    """
    rounds = [it.accepted_round for it in promises if it.accepted_round is not None]
    return electorate.proposer(max(rounds)) if rounds else proposer


class Proposer:
    """The state of one round that this node leads."""

    def __init__(self, electorate: Electorate, round: int) -> None:
        self.round = round
        self.proposal: Propose | None = None
        self._electorate = electorate
        self._promises: dict[PeerId, PromiseProof] = {}
        self._accepted: dict[Digest, Entry] = {}
        self._votes: dict[PeerId, bytes] = {}

    # ── promises ─────────────────────────────────────────────────────────────────────────────────

    @property
    def is_promised(self) -> bool:
        """Whether a quorum has promised this round, which round 0 does not need."""
        return self.round == 0 or self._electorate.reached(self._promises.keys())

    def add_promise(self, sender: PeerId, promise: Promise) -> str:
        """Count a valid promise. Return the reason why it is not valid; empty if it is."""
        if self.proposal is not None or sender in self._promises:
            return ""
        fault = self._electorate.promise_fault(sender, promise)
        if not fault:
            self.count_promise(sender, promise)
        return fault

    def count_promise(self, voter: PeerId, promise: Promise) -> None:
        self._promises[voter] = proof_of(voter, promise)
        if promise.accepted is not None:
            self._accepted[promise.accepted.entry.digest] = promise.accepted.entry

    def choice(self, unusable: Unusable) -> tuple[Entry | None, tuple[PromiseProof, ...]]:
        """Return the entry that must be proposed, and the promises that show this. The entry is
        None if this node is free to propose any entry.

        If the forced entry is unusable, it is passed over if the promises that do not back it come
        from a quorum. Then it was not chosen in that round, and these promises prove that. They may
        force another entry.
        """
        promises = tuple(self._promises.values())
        while (forced := forced_by(promises)) is not None:
            entry, others = self._accepted[forced], not_backing(promises, forced)
            passable = self._electorate.reached({proof.voter for proof in others})
            if not (passable and unusable(entry, promises)):
                return entry, promises
            promises = others
        return None, promises

    # ── votes ────────────────────────────────────────────────────────────────────────────────────

    def propose(self, proposal: Propose, me: PeerId) -> None:
        """Start to collect votes for `proposal`. This node's own vote must already be durable."""
        assert self.proposal is None
        assert proposal.round == self.round
        self.proposal = proposal
        self._votes = {me: proposal.signature}

    def add_vote(self, sender: PeerId, vote: Vote) -> str:
        """Count a valid vote. Return the reason why it is not valid; empty if it is."""
        if self.proposal is None or vote.round != self.round or sender in self._votes:
            return ""
        fault = self._electorate.vote_fault(sender, vote)
        if not fault and vote.entry != self.proposal.entry.digest:
            fault = "it is not for the proposed entry"
        if not fault:
            self._votes[sender] = vote.signature
        return fault

    def outcome(self) -> Certified | None:
        if self.proposal is None or not self._electorate.reached(self._votes.keys()):
            return None
        return self._electorate.certified(self.round, self.proposal.entry, self._votes)

    # ── messages to send ─────────────────────────────────────────────────────────────────────────

    def to_silent(self) -> list[Effect]:
        """Return the proposer's current message for every voter that has not answered it."""
        message: Message = self.proposal or Prepare(self._electorate.height, self.round)
        answered = self._promises.keys() if self.proposal is None else self._votes.keys()
        silent = [voter for voter in self._electorate.voters if voter not in answered]
        if are_many(silent):
            return [Announce(message)]
        return [Send(voter, message) for voter in silent]


def are_many(voters: Sequence[PeerId]) -> bool:
    """Return whether there are too many voters to send a unicast message to each: use gossip."""
    return len(voters) > UNICASTS_MAX

"""The reports on which proposals and votes are based: what peers say about themselves, and what
this node knows about them.

A report is an event of the ledger (`events`). In an `OwnReport`, `peer` is its author, which the
network has authenticated, or this node itself. These reports spread by gossip: with each heartbeat,
and immediately when they change.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.findings import Finding
from p2ptrain.ledger.chain.values import Terms
from p2ptrain.ledger.messages.claim_statement import ClaimStatement


@dataclass(frozen=True, slots=True)
class Joining:
    """`peer` asks to become a member. It has caught up with the run far enough to take part."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Ready:
    """`peer` has a contribution to outer step `step`: it trained on the first `blocks` of its lease
    (the data blocks assigned to it), which contain `tokens` tokens.

    A node that does not train (a seed) reports Ready with no tokens and no blocks. In a run with
    claims (`Rules.claims`), any other Ready carries the signed statement about its `claim`, which
    repeats the numbers.
    """

    peer: PeerId
    step: int
    tokens: int
    blocks: int
    claim: ClaimStatement | None = None

    @property
    def serial(self) -> int:
        """The number of the claim; 0 without a claim."""
        return 0 if self.claim is None else self.claim.serial

    @property
    def named(self) -> Digest | None:
        """The digest of the claim, as the participant of a roster carries it."""
        return None if self.claim is None else self.claim.claim

    @staticmethod
    def of(peer: PeerId, said: ClaimStatement) -> Ready:
        """Return the report that belongs to a statement about a claim."""
        return Ready(peer, said.step, said.tokens, said.blocks, said)


@dataclass(frozen=True, slots=True)
class ReduceDone:
    """`peer` finished the reduce, and has stored its result `update` durably."""

    peer: PeerId
    step: int
    attempt: int
    update: Digest


@dataclass(frozen=True, slots=True)
class ReduceFailed:
    """`peer` abandoned this attempt at a reduce. `suspects` are the peers that it accuses, if any.
    A peer that names itself has lost its work.
    """

    peer: PeerId
    step: int
    attempt: int
    suspects: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateHeld:
    """This node has the update's bytes durably on disk and can serve them. `reduce` (outer step,
    attempt) is the reduce whose bound on influence the bytes meet (S14); None if it does not
    matter.
    """

    update: Digest
    reduce: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """`peer` wrote a snapshot of its θ and m, as they were before outer step `step`."""

    peer: PeerId
    step: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The failure detector considers `peer` down."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerUp:
    """The failure detector considers `peer` up again."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Leaving:
    """`peer` said goodbye. It remains a member until a roster without it is agreed."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Staying:
    """`peer` says that it is not leaving: an earlier goodbye of it no longer counts."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class AllowedPeers:
    """The peers that may be members from now on; None if any peer may."""

    peers: Container[PeerId] | None


@dataclass(frozen=True, slots=True)
class KnownAmendments:
    """All amendments that this node has on disk."""

    terms: frozenset[Terms]


@dataclass(frozen=True, slots=True)
class AuditOffer:
    """`peer` offers `cores` processor cores to audit claims of others. 0 withdraws the offer."""

    peer: PeerId
    cores: int


@dataclass(frozen=True, slots=True)
class FindingMade:
    """An auditor made a finding. It signed the finding, so any peer may pass it on."""

    finding: Finding


OwnReport = (
    Joining | Ready | ReduceDone | ReduceFailed | SnapshotTaken | Leaving | Staying | AuditOffer
)
"""A statement of a peer about itself."""

AnyReport = (
    OwnReport | UpdateHeld | PeerDown | PeerUp | AllowedPeers | KnownAmendments | FindingMade
)

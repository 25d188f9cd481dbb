"""The reports that proposals and votes are based on: what peers say about themselves, and what this
node knows about them.

A report is an event of the ledger (`events`). The `peer` of a report is the author that the network
has authenticated, or this node itself. Reports spread by gossip: with each heartbeat, and
immediately when they change.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Terms


@dataclass(frozen=True, slots=True)
class Joining:
    """`peer` has a recent enough state and asks to become a member."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Ready:
    """`peer` has a contribution to outer step `step`: it trained on the first `blocks` of its
    lease.

    A node that does not train (a seed) reports Ready with no tokens and no blocks.
    """

    peer: PeerId
    step: int
    tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class ReduceDone:
    """`peer` finished the reduce and holds the reduce's result, stored durably."""

    peer: PeerId
    step: int
    attempt: int
    update: Digest


@dataclass(frozen=True, slots=True)
class ReduceFailed:
    """`peer` abandoned this attempt. `suspects` are the peers that may be at fault; it may be
    empty.
    """

    peer: PeerId
    step: int
    attempt: int
    suspects: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateHeld:
    """This node has the update's bytes durably on disk and can serve them. `reduce` (outer step,
    attempt) is the reduce within whose bounds the bytes are; it is None if bounds do not matter.
    """

    update: Digest
    reduce: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """`peer` wrote the snapshot of θ and m before outer step `step`, from its own state."""

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
    """`peer` said goodbye. It stays a voter until a roster without it is agreed."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Staying:
    """`peer` says that it is not leaving. Its earlier goodbye was withdrawn, or was an old message
    that another peer repeated.
    """

    peer: PeerId


@dataclass(frozen=True, slots=True)
class AllowedPeers:
    """The peers that may be members from now on: those on the allowlist, or all peers in an open
    run. The caller decides this. None: any peer that asks may be a member.
    """

    peers: Container[PeerId] | None


@dataclass(frozen=True, slots=True)
class KnownAmendments:
    """All amendments that this node has on disk."""

    terms: frozenset[Terms]


AnyReport = (
    Joining
    | Ready
    | ReduceDone
    | ReduceFailed
    | UpdateHeld
    | SnapshotTaken
    | PeerDown
    | PeerUp
    | Leaving
    | Staying
    | AllowedPeers
    | KnownAmendments
)

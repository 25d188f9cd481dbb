"""What a node tells its ledger. All but Tick may come late, twice, out of order, or never.

A report's `peer` is whoever the network authenticated as its author, or this node itself for its
own. Reports reach others by gossip, repeated with each heartbeat and at once upon change.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import LineId, Terms
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.messages.messages import Message


@dataclass(frozen=True, slots=True)
class Received:
    """A ledger message came from `sender`, whom the network has authenticated."""

    sender: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Joining:
    """`peer` holds a recent enough state and asks to be a member."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Ready:
    """`peer` has a contribution for outer step `step`: the first `blocks` of its lease, trained.

    A node that does not train (a seed) says Ready with no tokens and no blocks.
    """

    peer: PeerId
    step: int
    tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class ReduceDone:
    """`peer` finished the reduce and holds its result, stored durably."""

    peer: PeerId
    step: int
    attempt: int
    update: Digest


@dataclass(frozen=True, slots=True)
class ReduceFailed:
    """`peer` gave this attempt up. `suspects` are those whose fault it may be, perhaps nobody."""

    peer: PeerId
    step: int
    attempt: int
    suspects: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateHeld:
    """This node has the update's bytes on disk, durably, and can serve them. They were found to be
    within the bounds of `reduce`, an outer step and attempt; None if that does not matter.
    """

    update: Digest
    reduce: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """`peer` wrote the snapshot of θ and m before outer step `step`, which it made by itself."""

    peer: PeerId
    step: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The failure detector gave `peer` up."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerUp:
    """`peer` is heard again."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Leaving:
    """`peer` said goodbye. It stays a voter until a roster without it is agreed."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Staying:
    """`peer` says that it does not leave. A goodbye of before was taken back, or is an old one that
    somebody has sent again.
    """

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Allowed:
    """Who may be a member from now on: those on the allowlist, or in an open run all that are peers
    at all, which this package cannot tell. None if whoever asks may be.
    """

    peers: Container[PeerId] | None


@dataclass(frozen=True, slots=True)
class Amendable:
    """The amendments that this node has on disk, all of them."""

    terms: frozenset[Terms]


@dataclass(frozen=True, slots=True)
class Heard:
    """A heartbeat says that `peer` has a chain of `height` entries, and is on `line`; None where a
    run has no branches. A peer's reports are about the line that it was last heard on.
    """

    peer: PeerId
    height: int
    line: LineId | None = None


@dataclass(frozen=True, slots=True)
class Accused:
    """Evidence that this node kept, or was given. It is checked before it counts."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class NotAlone:
    """Another process has proved that it has this node's identity, and lives (E6 in SPEC.md).
    `what` describes the proof in words.
    """

    what: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Only time has passed."""


Event = (
    Received
    | Joining
    | Ready
    | ReduceDone
    | ReduceFailed
    | UpdateHeld
    | SnapshotTaken
    | PeerDown
    | PeerUp
    | Leaving
    | Staying
    | Allowed
    | Amendable
    | Heard
    | Accused
    | NotAlone
    | Tick
)


def author_of(event: Event) -> PeerId | None:
    """Which peer said so; None for what this node alone can say."""
    match event:
        case Received(sender):
            return sender
        case (
            Heard(peer)
            | Joining(peer)
            | Ready(peer)
            | ReduceDone(peer)
            | ReduceFailed(peer)
            | SnapshotTaken(peer)
            | Leaving(peer)
            | Staying(peer)
        ):
            return peer
        case _:
            return None

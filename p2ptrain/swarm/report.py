"""The progress and the result of a fetch, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from p2ptrain.errors import ChunkCorrupt, P2PTrainError, PeerTooSlow, RemoteProtocolError
from p2ptrain.ids import PeerId


class DropReason(Enum):
    """Why a source was dropped. The first two reasons are the source's fault. The path to the
    source may have caused the others.
    """

    CORRUPT = "sent a chunk that does not match its digest"
    PROTOCOL = "broke the protocol"
    SLOW = "was too slow"
    LOST = "lost the connection"
    UNREACHABLE = "could not be reached"

    @property
    def is_blame(self) -> bool:
        """Whether the peer is at fault and should be reported."""
        return self in (DropReason.CORRUPT, DropReason.PROTOCOL)

    @property
    def is_passing(self) -> bool:
        """Whether the reason may be temporary: the peer does not know us yet, or is restarting."""
        return self in (DropReason.UNREACHABLE, DropReason.LOST)


@dataclass(frozen=True, slots=True)
class DroppedPeer:
    """A source that was dropped for the rest of this fetch."""

    peer: PeerId
    fault: DropReason
    detail: str

    def __str__(self) -> str:
        return f"{self.peer} {self.fault.value}: {self.detail}"


def drop_reason(exc: P2PTrainError, *, connected: bool) -> DropReason:
    """Return the reason to drop a source whose connection, or dial, failed with `exc`."""
    if not connected:
        return DropReason.UNREACHABLE  # a different peer may have answered at that address
    if isinstance(exc, ChunkCorrupt):
        return DropReason.CORRUPT
    if isinstance(exc, RemoteProtocolError):
        return DropReason.PROTOCOL
    return DropReason.SLOW if isinstance(exc, PeerTooSlow) else DropReason.LOST


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """The progress of a fetch. `chunks_left` grows once, when a blob's manifest arrives."""

    chunks_fetched: int
    chunks_left: int
    bytes_fetched: int

    @property
    def fraction(self) -> float:
        """Share of the missing chunks that have been fetched, from 0 to 1."""
        return self.chunks_fetched / max(1, self.chunks_fetched + self.chunks_left)


@dataclass(frozen=True, slots=True)
class FetchReport:
    """The result of a successful fetch. `bytes_by_peer` counts only the first copy of each
    chunk.
    """

    chunks_fetched: int
    bytes_by_peer: Mapping[PeerId, int]
    seconds: float
    dropped: tuple[DroppedPeer, ...]

    @property
    def bytes_fetched(self) -> int:
        return sum(self.bytes_by_peer.values())

    @property
    def blamed(self) -> tuple[PeerId, ...]:
        """The peers that are at fault and should be reported."""
        return blamed(self.dropped)


def blamed(dropped: Iterable[DroppedPeer]) -> tuple[PeerId, ...]:
    """Return the peers that were dropped for faults that the path to them cannot have caused."""
    return tuple(drop.peer for drop in dropped if drop.fault.is_blame)

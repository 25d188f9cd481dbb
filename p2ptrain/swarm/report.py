"""The progress and the result of a fetch, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from p2ptrain.errors import ChunkCorrupt, P2PTrainError, PeerTooSlow, RemoteProtocolError
from p2ptrain.ids import PeerId


class DropReason(Enum):
    """Why a source was dropped. The first two are the source's fault; the path may have caused the
    rest.
    """

    CORRUPT = "sent a chunk that does not match its digest"
    PROTOCOL = "broke the protocol"
    SLOW = "did not send anything for too long"
    LOST = "lost the connection"
    UNREACHABLE = "could not be reached"

    @property
    def is_blame(self) -> bool:
        """Whether the peer should be reported for it."""
        return self in (DropReason.CORRUPT, DropReason.PROTOCOL)

    @property
    def is_passing(self) -> bool:
        """Whether it may be temporary: the peer does not know us yet, or is restarting."""
        return self in (DropReason.UNREACHABLE, DropReason.LOST)


@dataclass(frozen=True, slots=True)
class DroppedPeer:
    """A source that was dropped for the rest of this fetch."""

    peer: PeerId
    fault: DropReason
    detail: str

    @classmethod
    def by(cls, peer: PeerId, exc: P2PTrainError, *, connected: bool) -> DroppedPeer:
        """Return the record for a peer whose connection failed with `exc`."""
        return cls(peer, _fault_of(exc, connected), exc.what)

    def __str__(self) -> str:
        return f"{self.peer} {self.fault.value}: {self.detail}"


def _fault_of(exc: P2PTrainError, connected: bool) -> DropReason:
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
        """The peers to report, for faults that the path to them cannot have caused."""
        return blamed(self.dropped)


def blamed(dropped: Iterable[DroppedPeer]) -> tuple[PeerId, ...]:
    """Return the peers to report."""
    return tuple(drop.peer for drop in dropped if drop.fault.is_blame)

"""The objects of a node's data plane. They do not change while the node runs."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.dataplane import Congestion, Credentials, Endpoint, Listener, RingInbox, Uplink
from p2ptrain.errors import ChunkMissing
from p2ptrain.ids import Digest
from p2ptrain.swarm import ChunkSource, NamedChunks


class ServedChunks:
    """The chunks that other peers may fetch. While `is_open` is False, because the owner's bytes of
    the day are used up, this node answers as if it had none, so that peers ask others at once."""

    def __init__(self, source: ChunkSource) -> None:
        self._source = source
        self.is_open = True
        """Written by `control/`."""

    def get_chunk(self, digest: Digest) -> bytes:
        """Return the verified bytes. Raises StoreError."""
        if not self.is_open:
            raise ChunkMissing("the bytes that this node may send today are used up")
        return self._source.get_chunk(digest)


@dataclass(frozen=True, slots=True)
class DataPlane:
    credentials: Credentials
    listener: Listener
    ring_inbox: RingInbox
    uplink: Uplink
    """Limits and counts the bytes sent."""
    downlink: Uplink
    """Limits the bytes received in fetches."""
    serving: ServedChunks
    congestion: Congestion
    """The congestion control of this machine's sockets."""
    endpoint: Endpoint
    """The address at which peers dial us, and the certificate that we present there."""
    public: NamedChunks | None = None
    """The chunks that strangers may fetch; None if the run does not let them."""

"""The objects of a node's data plane. They do not change while the node runs."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.dataplane import Congestion, Credentials, Endpoint, Listener, RingInbox, Uplink
from p2ptrain.swarm import NamedChunks


@dataclass(frozen=True, slots=True)
class DataPlane:
    credentials: Credentials
    listener: Listener
    ring_inbox: RingInbox
    uplink: Uplink | None
    """Limits the bytes sent per second; None if there is no limit."""
    congestion: Congestion
    """The congestion control of this machine's sockets."""
    endpoint: Endpoint
    """The address at which peers dial us, and the certificate that we present there."""
    public: NamedChunks | None = None
    """The chunks that strangers may fetch; None if the run does not let them."""

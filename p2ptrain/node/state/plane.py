"""The objects of a node's data plane. They stay the same for the whole life of a node."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.dataplane import (
    Congestion,
    Credentials,
    Endpoint,
    Listener,
    RingInbox,
    Uplink,
)


@dataclass(frozen=True, slots=True)
class DataPlane:
    credentials: Credentials
    listener: Listener
    ring_inbox: RingInbox
    uplink: Uplink | None
    """Limits the bytes sent; None without a cap."""
    congestion: Congestion
    """The congestion control of this machine's sockets."""
    endpoint: Endpoint
    """Where peers dial us, and the certificate that they find there."""

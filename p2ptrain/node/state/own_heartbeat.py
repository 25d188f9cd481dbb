"""The facts that only this node's own heartbeats need. Written by `gossip/`."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from p2ptrain.peers.heartbeat_delta import HeartbeatSender
from p2ptrain.peers.reach_watch import ReachWatch


@dataclass(slots=True)
class OwnHeartbeat:
    due: trio.Event = field(default_factory=trio.Event)
    """Set to send the next heartbeat at once; replaced when a heartbeat is sent."""
    saying: HeartbeatSender = field(default_factory=HeartbeatSender)
    """Encodes our heartbeats, and decides which ones are full. The others contain only changes."""
    dialled: bool = False
    """True if other sites have lately connected to our data plane."""
    dialable: bool = True
    """False if peers probably cannot dial our data plane, by the version of IP that the verdict
    about our reachability is about."""
    dialable_by_ipv6: bool = False
    """True if other sites have lately connected to our data plane by IPv6."""
    tells_ipv6: bool = False
    """Whether our last heartbeat contained a public IPv6 address of our data plane."""

    moves: int = 0
    """How often this machine has changed its network."""
    reach: ReachWatch = field(default_factory=ReachWatch)
    """How other members reach this node. Updated by `reach_task`."""

    def send_now(self) -> None:
        """Send a heartbeat at once: peers wait for what has changed. Any task may call this."""
        self.due.set()

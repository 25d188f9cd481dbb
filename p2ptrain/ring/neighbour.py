"""What a lane knows of one neighbour: what goes there next, and how its connections do.

What is ready goes on whichever connection has room. So a connection that has fallen behind, as one
of several on a long path always has, keeps nothing waiting but the segment that it carries.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from p2ptrain.dataplane import Ticket
from p2ptrain.ids import PeerId
from p2ptrain.ring.lane_progress import Arrival, Send
from p2ptrain.ring.link import Link
from p2ptrain.ring.wait_for import Excuse


@dataclass(slots=True)
class Connection:
    """One stream to one neighbour. For one thread."""

    stream: int
    link: Link
    going: Send | None = None
    arrival: Arrival | None = None
    place: memoryview | None = None
    """Where the arrival goes, once it may come."""
    readable: bool = True
    writable: bool = True
    """False once nothing more could be moved, until the link is found to be ready again."""
    heard_at: float = field(default_factory=time.monotonic)
    took_at: float = field(default_factory=time.monotonic)
    """When it last accepted a byte, or had nothing to accept."""
    begun_at: float = 0.0
    """The frame that is under way, or was last."""
    gone: bool = False
    """Whether it has ended its side of the link, while we hold it back."""
    said_done: bool = False
    heard_done: bool = False
    broken_at: float | None = None
    broken: str = ""

    @property
    def held_back(self) -> bool:
        """Whether we leave unread what has come, since others come first."""
        return self.arrival is not None and self.place is None

    @property
    def receiving(self) -> bool:
        """Whether part of a frame has come, and we read on."""
        return self.broken_at is None and (self.link.begun or self.place is not None)

    @property
    def over(self) -> bool:
        """Whether it has carried all that it will, both ways: how it ends is of no interest."""
        return self.said_done and self.heard_done and not self.link.busy

    def break_off(self, what: str) -> None:
        """The link has ended, for the reason `what`."""
        self.broken_at = time.monotonic()
        self.broken = what


@dataclass(slots=True)
class Neighbour:
    """For one thread."""

    number: int
    peer: PeerId
    connections: list[Connection]
    ready: list[Send] = field(default_factory=list)
    """A heap: what may go, the longest way first."""
    tickets: deque[Ticket] = field(default_factory=deque)
    """Asked for what is to go next, where the uplink is capped."""
    not_before: float = 0.0
    """When to look at the first ticket again."""
    told: Excuse | None = None
    """For whom it has heard from us that we wait."""
    spoke_at: float = field(default_factory=time.monotonic)
    busy_since: float = 0.0
    sending_s: float = 0.0
    """While something was on its way to it, on any connection."""

    @property
    def heard_at(self) -> float:
        return max(each.heard_at for each in self.connections)

    @property
    def busy(self) -> bool:
        return any(each.link.busy for each in self.connections)

    @property
    def over(self) -> bool:
        return all(each.over for each in self.connections)

    @property
    def broken(self) -> bool:
        """Whether a connection has ended that should not have."""
        return any(each.broken_at is not None and not each.over for each in self.connections)

"""The state of one neighbour in a lane: the segments to send next, and its connections.

A lane is a slice of the vector with its own thread. A segment that is ready is sent on any
connection with room. On a long path, some connections always fall behind; each delays only the
segment that it carries.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from p2ptrain.dataplane import Ticket
from p2ptrain.ids import PeerId
from p2ptrain.ring.lane_progress import IncomingSegment, OutgoingSegment
from p2ptrain.ring.link import Link
from p2ptrain.ring.wait_for import Wait


@dataclass(slots=True)
class Connection:
    """One stream to one neighbour. Used by one thread."""

    stream: int
    link: Link
    going: OutgoingSegment | None = None
    """The segment that is being sent."""
    arrival: IncomingSegment | None = None
    """The segment whose header has been received."""
    place: memoryview | None = None
    """Buffer for the arriving segment; None until the segment can be received."""
    readable: bool = True
    writable: bool = True
    """False after a send that transferred nothing, until poll reports the link as writable
    again.
    """
    heard_at: float = field(default_factory=time.monotonic)
    took_at: float = field(default_factory=time.monotonic)
    """Monotonic time when the link last accepted a byte, or when there was nothing to send."""
    begun_at: float = 0.0
    """Monotonic time when the current or last frame was started."""
    gone: bool = False
    """Whether the neighbour ended its side while we left a frame unread (see `held_back`)."""
    said_done: bool = False
    heard_done: bool = False
    broken_at: float | None = None
    broken: str = ""

    @property
    def held_back(self) -> bool:
        """Whether we leave the current frame unread because other segments must be received
        first.
        """
        return self.arrival is not None and self.place is None

    @property
    def receiving(self) -> bool:
        """Whether part of a frame has been received and we are reading the rest."""
        return self.broken_at is None and (self.link.begun or self.place is not None)

    @property
    def over(self) -> bool:
        """Whether everything was transferred in both directions. Later failures do not matter."""
        return self.said_done and self.heard_done and not self.link.busy

    def break_off(self, what: str) -> None:
        """Record that the link has ended. `what` is the reason."""
        self.broken_at = time.monotonic()
        self.broken = what


@dataclass(slots=True)
class Neighbour:
    """One neighbour. Used by one thread."""

    number: int
    peer: PeerId
    connections: list[Connection]
    ready: list[OutgoingSegment] = field(default_factory=list)
    """A heap of the segments that may be sent; the one with the most hops left comes first."""
    tickets: deque[Ticket] = field(default_factory=deque)
    """Tickets requested for the next segments, if the uplink is rate-limited."""
    not_before: float = 0.0
    """Monotonic time when to check the first ticket again."""
    told: Wait | None = None
    """The last WAITING statement that we sent to this neighbour."""
    spoke_at: float = field(default_factory=time.monotonic)
    busy_since: float = 0.0
    sending_s: float = 0.0
    """Seconds during which we were sending to the neighbour, on any connection."""

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
        """Whether a connection has ended before everything was transferred."""
        return any(each.broken_at is not None and not each.over for each in self.connections)

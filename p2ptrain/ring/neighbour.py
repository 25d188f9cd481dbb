"""What a stream knows of one neighbour: its link, what goes there next, when it last stirred."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field

from p2ptrain.dataplane import Ticket
from p2ptrain.ids import PeerId
from p2ptrain.ring.excuses import Excuse
from p2ptrain.ring.link import Link
from p2ptrain.ring.work import Arrival, Send


@dataclass(slots=True)
class Neighbour:
    """For one thread."""

    number: int
    peer: PeerId
    link: Link
    ready: list[Send] = field(default_factory=list)
    """A heap: what may go, the longest way first."""
    going: Send | None = None
    arrival: Arrival | None = None
    place: memoryview | None = None
    """Where the arrival goes, once it may come."""
    ticket: Ticket | None = None
    """Asked for what is to go next, where the uplink is capped."""
    not_before: float = 0.0
    """When to look at the ticket again."""
    readable: bool = True
    writable: bool = True
    """False once nothing more could be moved, until the link is found to be ready again."""
    heard_at: float = field(default_factory=time.monotonic)
    spoke_at: float = field(default_factory=time.monotonic)
    took_at: float = field(default_factory=time.monotonic)
    """When it last accepted a byte, or had nothing to accept."""
    busy_since: float = 0.0
    sending_s: float = 0.0
    gone: bool = False
    """Whether it has ended its side of the link, while we hold it back."""
    broken_at: float | None = None
    broken: str = ""
    told: Excuse | None = None
    """For whom it has heard from us that we wait."""

    @property
    def held_back(self) -> bool:
        """Whether we leave unread what it has sent, since others come first."""
        return self.arrival is not None and self.place is None

    def may_go(self, sends: list[Send]) -> None:
        for send in sends:
            heapq.heappush(self.ready, send)

    def break_off(self, what: str) -> None:
        """The link has ended, for the reason `what`."""
        self.broken_at = time.monotonic()
        self.broken = what

"""What one stream has to send next, and what it has already let go.

The receiving thread puts segments in as they become ready, the sending thread takes them out. It
holds only their names: every segment lies in the payload, where it is received, added to, and sent
from. So nothing here can fill up, the receiving thread never waits for the sending one, and a ring
cannot block itself however small the sockets' buffers are.

The earliest hop goes first: what has the longest way before it sets out soonest.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from p2ptrain.ring.plan import Segment


class Outbox:
    """Thread-safe for one thread that puts, one that takes, and any that call `stop`."""

    def __init__(self, sends: tuple[tuple[Segment, ...], ...]) -> None:
        self._changed = threading.Condition()
        self._ready: list[deque[Segment]] = [deque() for _ in sends]
        self._taken = [0 for _ in sends]
        self._left = sum(len(hop) for hop in sends)
        self._stopped = False
        if sends:
            self._ready[0].extend(sends[0])

    @property
    def finished(self) -> bool:
        """Whether all segments of the plan have been taken out."""
        return self._left == 0

    def stop(self) -> None:
        """Wake the taker; from now on `take` returns None at once."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def put(self, segment: Segment) -> None:
        with self._changed:
            self._ready[segment.hop].append(segment)
            self._changed.notify_all()

    def take(self, seconds: float) -> Segment | None:
        """The next segment to send, or None if there is none within `seconds`."""
        ends = time.monotonic() + seconds
        with self._changed:
            while not self._stopped:
                for ready in self._ready:
                    if ready:
                        return ready.popleft()
                if not self._changed.wait(ends - time.monotonic()):
                    break
            return None

    def let_go(self, segment: Segment) -> None:
        """The bytes of `segment` are as they will be sent: what comes back may overwrite them."""
        self._taken[segment.hop] += 1
        self._left -= 1

    def has_let_go(self, hop: int, index: int) -> bool:
        """Whether the segment with this place in `hop` is on its way. They leave in order."""
        return index < self._taken[hop]

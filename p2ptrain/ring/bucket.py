"""A cap on the rate at which all senders that share it send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from p2ptrain.errors import LocalProtocolError

BURST_BYTES = 64 * 1024
"""A quarter of a segment: small messages are not delayed, and the rate shows within one segment."""


class TokenBucket:
    """Reserve before you send, then wait as long as you are told. Thread-safe; never sleeps itself.

    Share one bucket among all streams, and among reduces that run at once.
    """

    def __init__(
        self,
        bytes_per_s: float,
        *,
        burst_bytes: int = BURST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not bytes_per_s > 0 or burst_bytes < 0:
            raise LocalProtocolError(f"{bytes_per_s} bytes/s with bursts of {burst_bytes}")
        self.bytes_per_s = bytes_per_s
        self._burst_s = burst_bytes / bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._paid_until = -float("inf")

    def reserve(self, count: int) -> float:
        """Seconds to wait before `count` bytes may go. Reservations are served in order."""
        with self._lock:
            now = self._clock()
            begins = max(self._paid_until, now - self._burst_s)
            self._paid_until = begins + count / self.bytes_per_s
            return max(0.0, self._paid_until - now)

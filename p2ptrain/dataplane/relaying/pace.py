"""Limit the rate of relayed bytes to a share of the user's upload limit.

Two limits apply to each quantum: the relay's own rate, and the node's uplink, in which relayed
bytes have the priority of the swarm. So the bytes of this node's own reduce are sent first.
"""

from __future__ import annotations

from p2ptrain.dataplane.pacing import SendPriority, Ticket
from p2ptrain.dataplane.relaying.policy import LIMIT_SHARE
from p2ptrain.dataplane.uplink import Uplink

QUANTUM_BYTES_MAX, QUANTUM_BYTES_MIN = 256 * 1024, 512
QUANTA_PER_S = 32
"""The bytes of this node's own reduce wait for at most one quantum: 8 ms, since a quantum uses all
of the uplink."""
BURST_S = 0.25
"""Burst in seconds of relaying. On a busy machine the thread wakes up late, and makes up for it."""


class Pace:
    """Grants the bytes that the relay may send. One thread uses it."""

    def __init__(self, uplink: Uplink, limit_bytes_per_s: float | None) -> None:
        rate = None if limit_bytes_per_s is None else LIMIT_SHARE * limit_bytes_per_s
        self._quantum = _quantum(rate)
        self._own = Uplink(rate, burst_bytes=0 if rate is None else round(BURST_S * rate))
        self._shares = [each.share(SendPriority.SWARM) for each in (self._own, uplink)]
        self._tickets: list[Ticket] = []
        self._asked = 0
        """The bytes of each of the tickets."""

    def grant(self) -> tuple[int, float]:
        """Return the bytes that may be sent in addition to earlier grants. If there are none,
        return 0 and the seconds after which it pays to ask again. Call this only if bytes wait."""
        if not self._tickets:
            self._asked = self._quantum
            self._tickets = [share.request_ticket(self._asked) for share in self._shares]
        pairs = zip(self._shares, self._tickets, strict=True)
        wait_s = max(share.wait_s(ticket) for share, ticket in pairs)
        if wait_s > 0:
            return 0, wait_s
        self._tickets = []
        return self._asked, 0.0

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._own.limited

    def note_sent(self, count: int) -> None:
        """Count bytes that were sent while there was no limit."""
        self._shares[1].request_ticket(count)

    def set_limit(self, limit_bytes_per_s: float | None) -> None:
        """Change the user's upload limit. Any thread may call this."""
        rate = None if limit_bytes_per_s is None else LIMIT_SHARE * limit_bytes_per_s
        self._quantum = _quantum(rate)
        self._own.set_rate(rate)

    def close(self) -> None:
        """Stop asking. The node's own bytes are no longer delayed by an open ticket."""
        self._own.close()
        for share in self._shares:
            share.close()


def _quantum(bytes_per_s: float | None) -> int:
    if bytes_per_s is None:
        return QUANTUM_BYTES_MAX
    return min(max(round(bytes_per_s / QUANTA_PER_S), QUANTUM_BYTES_MIN), QUANTUM_BYTES_MAX)

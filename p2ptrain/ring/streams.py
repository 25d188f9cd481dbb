"""The number of connections between two neighbours. Both ends compute it from what all peers know.

Without an administrator, one connection on Linux has at most some 2 MB of payload in flight (4 MiB
of kernel memory, `net.ipv4.tcp_wmem`). On a path of 80 ms that is 200 Mbit/s. A lost packet halves
the rate of one connection, which hurts less if there are several. So a pair has one connection for
each 2 MB that it exchanges, up to `STREAMS_BEST`; another would have nothing to carry. The length
of the path is not used: each end measures another delay, and on short paths more connections cost
little.
"""

from __future__ import annotations

import math

from p2ptrain.ring.schedules import Schedule

WINDOW_BYTES = 2_000_000
STREAMS_BEST = 4
"""On a path of 80 ms with losses, four connections carried as much as sixteen. On loopback, where
more connections gain nothing, four cost 2.5 % more CPU than two, and eight up to 15 %."""
CONNECTIONS_MAX = 32
"""Limit for one peer in one reduce, but each neighbour has at least one. Each needs a handshake."""


def streams_for(schedule: Schedule, peers: int, payload_bytes: int) -> int:
    """Return the connections between two neighbours when `peers` average so many bytes."""
    if peers == 1:
        return 1
    ends = {"ring": min(2, peers - 1), "direct": peers - 1, "grid": 2 * math.isqrt(peers) + 1}
    neighbours = min(ends[schedule], peers - 1)
    sent = 2 * (peers - 1) * payload_bytes // peers
    # A ring's bytes all go to one of its neighbours.
    to_each = sent if schedule == "ring" else sent // neighbours
    wanted = min(STREAMS_BEST, -(-to_each // WINDOW_BYTES), CONNECTIONS_MAX // neighbours)
    return max(1, wanted)

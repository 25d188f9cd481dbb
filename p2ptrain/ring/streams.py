"""The number of connections between two neighbours. Both ends compute it from data that all peers
have.

With Linux's default settings, a connection has at most about 2 MB of payload in flight (4 MiB of
kernel memory, `net.ipv4.tcp_wmem`). On a path of 80 ms that is 200 Mbit/s. A lost packet halves the
rate of one connection, which matters less if there are several. So a pair has one connection for
each 2 MB that one end sends to the other, up to `STREAMS_BEST`; more connections would not be used.
The delay of the path is ignored, because the two ends measure different delays and additional
connections are cheap on short paths.
"""

from __future__ import annotations

import math

from p2ptrain.ring.schedules import Schedule

WINDOW_BYTES = 2_000_000
STREAMS_BEST = 4
"""Maximum number of connections between two neighbours. On a path of 80 ms with packet loss, four
connections were as fast as sixteen. On loopback, where more connections have no benefit,
four took 2.5 % more CPU than two, and eight up to 15 %."""
CONNECTIONS_MAX = 32
"""Maximum number of connections of one peer in one reduce. (A peer with more neighbours has one
connection to each.) Each connection needs a handshake."""


def streams_for(schedule: Schedule, peers: int, payload_bytes: int) -> int:
    """Return the number of connections between two neighbours when `peers` average
    `payload_bytes`.
    """
    if peers == 1:
        return 1
    ends = {"ring": min(2, peers - 1), "direct": peers - 1, "grid": 2 * math.isqrt(peers) + 1}
    neighbours = min(ends[schedule], peers - 1)
    sent = 2 * (peers - 1) * payload_bytes // peers
    # In a ring, all bytes are sent to one neighbour.
    to_each = sent if schedule == "ring" else sent // neighbours
    wanted = min(STREAMS_BEST, -(-to_each // WINDOW_BYTES), CONNECTIONS_MAX // neighbours)
    return max(1, wanted)

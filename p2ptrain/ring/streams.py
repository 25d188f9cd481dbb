"""How many connections each pair of neighbours has: by what all peers know, since both ends count.

One connection has at most some 2 MB of payload under way, whatever is asked of Linux without an
administrator (4 MiB of kernel memory, `net.ipv4.tcp_wmem`): on a path of 80 ms that is 200 Mbit/s,
and a loss halves the rate of one connection of many, or of all there is. So a pair has a connection
for each 2 MB that go between them, up to `STREAMS_BEST`: another would have nothing to carry. How
long paths are is not known here: each end measures another delay, and on short paths more
connections cost little.
"""

from __future__ import annotations

import math

from p2ptrain.ring.schedules import Schedule

WINDOW_BYTES = 2_000_000
STREAMS_BEST = 4
"""On a path of 80 ms with losses four carried as much as sixteen. On loopback, where more gain
nothing, four cost 2.5 % more CPU than two, and eight up to 15 %."""
CONNECTIONS_MAX = 32
"""Of one peer in one reduce, where that leaves one for each neighbour. Each is a TLS handshake."""


def streams_for(schedule: Schedule, peers: int, payload_bytes: int) -> int:
    """Connections between two neighbours when `peers` average so many bytes."""
    if peers == 1:
        return 1
    ends = {"ring": min(2, peers - 1), "direct": peers - 1, "grid": 2 * math.isqrt(peers) + 1}
    neighbours = min(ends[schedule], peers - 1)
    sent = 2 * (peers - 1) * payload_bytes // peers
    # A ring's bytes all go to one of its neighbours.
    to_each = sent if schedule == "ring" else sent // neighbours
    wanted = min(STREAMS_BEST, -(-to_each // WINDOW_BYTES), CONNECTIONS_MAX // neighbours)
    return max(1, wanted)

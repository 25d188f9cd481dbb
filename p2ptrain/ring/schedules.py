"""The schedules: trees along which each part travels to its owner and back.

The vector is divided into N parts for N peers, and each peer owns one part. Sums flow up a tree to
the part's owner: each peer adds its own contribution to the sums of its children. The owner divides
by N. The mean flows down another tree; its bytes do not change on the way.

    ring     the sum of part k starts at peer k and passes once around the ring to its owner, peer
             k − 1; then the mean passes around the ring: fewest bytes in flight, 2 (N − 1) hops
    direct   every peer sends directly to the owner and receives directly from it: 2 hops
    grid     peers are arranged in rows of about √N. One peer of each row collects the contributions
             of its row. The owner receives from these peers and from the peers of its own row:
             4 hops, and 2 √N neighbours instead of N − 1

Peers are numbered by their position in the roster's order. This module knows nothing about bytes,
sockets or time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from p2ptrain.errors import LocalProtocolError

Schedule = Literal["ring", "direct", "grid"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@dataclass(frozen=True, slots=True)
class Route:
    """The task of one peer for one part: where its sums and its mean come from and go to.

    When this peer sends the sum, the sum has made `sum_hop` hops. `mean_hop` counts the hops of the
    sum and of the mean together, up to the moment when this peer sends the mean.
    """

    sums_from: tuple[int, ...]
    """The peers that send sums, in the order in which their sums are added to our contribution."""
    sum_to: int | None
    """The peer to send the sum to; None at the part's owner."""
    mean_from: int | None
    means_to: tuple[int, ...]
    sum_hop: int
    mean_hop: int

    @property
    def owned(self) -> bool:
        """Whether this peer owns the part."""
        return self.sum_to is None


def routes(schedule: Schedule, peers: int, me: int) -> tuple[Route, ...]:
    """Return the routes of peer number `me`, by part. There are as many parts as peers.

    Raises:
        LocalProtocolError: there is no such schedule.
    """
    if schedule not in _ROUTES:
        raise LocalProtocolError(f"there is no schedule {schedule!r}")
    return tuple(route(schedule, peers, me, part) for part in range(peers))


def route(schedule: Schedule, peers: int, me: int, part: int) -> Route:
    """Return what peer number `me` does for `part`."""
    return _ROUTES[schedule](peers, me, part)


def owner_of(schedule: Schedule, peers: int, part: int) -> int:
    """Return the peer that divides the sum of `part`."""
    return (part - 1) % peers if schedule == "ring" else part


def contributors(schedule: Schedule, peers: int, part: int, sender: int) -> tuple[int, ...]:
    """Return the peers whose contributions are in the sum of `part` that `sender` sends, including
    `sender`.
    """
    found, due = [], [sender]
    while due:
        peer = due.pop()
        found.append(peer)
        due.extend(route(schedule, peers, peer, part).sums_from)
    return tuple(found)


def accumulates(schedule: Schedule) -> bool:
    """Return whether peers may have to add several sums to one segment."""
    return schedule != "ring"


def _ring(peers: int, me: int, part: int) -> Route:
    # The sum of part k starts at peer k. The last peer that it reaches, peer k − 1, is the owner.
    since, last = (me - part) % peers, peers - 1
    before, after = (me - 1) % peers, (me + 1) % peers
    return Route(
        sums_from=(before,) if since > 0 else (),
        sum_to=after if since < last else None,
        mean_from=before if since < last else None,
        means_to=(after,) if peers > 1 and since != last - 1 else (),
        sum_hop=since,
        mean_hop=last if since == last else peers + since,
    )


def _direct(peers: int, me: int, part: int) -> Route:
    if me != part:
        return Route((), part, part, (), 0, 2)
    others = tuple((me + after) % peers for after in range(1, peers))
    return Route(others, None, None, others, 1, 1)


def _grid(peers: int, me: int, part: int) -> Route:
    rows = math.isqrt(peers)
    row, column = _place(peers, rows, part)
    my_row, _ = _place(peers, rows, me)
    collector = _collector(peers, rows, my_row, column) if my_row != row else part
    row_mates = tuple(peer for peer in _members(peers, rows, my_row) if peer != me)
    if me == part:
        others = tuple(_collector(peers, rows, other, column) for other in range(rows))
        neighbours = row_mates + others[:row] + others[row + 1 :]
        return Route(neighbours, None, None, neighbours, 2, 2)
    if me == collector:
        return Route(row_mates, part, part, row_mates, 1, 3)
    return Route((), collector, collector, (), 0, 4)


def _members(peers: int, rows: int, row: int) -> range:
    return range(row * peers // rows, (row + 1) * peers // rows)


def _place(peers: int, rows: int, peer: int) -> tuple[int, int]:
    """Return a peer's row and column. The lengths of rows differ by at most one."""
    row = ((peer + 1) * rows - 1) // peers
    return row, peer - row * peers // rows


def _collector(peers: int, rows: int, row: int, column: int) -> int:
    """Return the peer of `row` that collects for the owners in `column`. A shorter row may lack
    this column; then its first peer collects.
    """
    members = _members(peers, rows, row)
    return members[column % len(members)]


_ROUTES: dict[str, Callable[[int, int, int], Route]] = {
    "ring": _ring,
    "direct": _direct,
    "grid": _grid,
}

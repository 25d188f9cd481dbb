"""Choose the order of the peers in the ring from the rates of the paths between them.

A ring is as fast as its slowest edge (connection between two neighbours), its *bottleneck*. So the
best order has the fastest bottleneck. The other edges do not matter. Up to EXACT_MAX peers, the
search finds the best order. With more peers, it takes a limited number of steps and may miss that
order. The rate of a pair is the slower of its two directions. A pair that was never measured has
the rate that the caller assumes. A pair in which neither end can be dialled has rate 0.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from p2ptrain.ids import PeerId

EXACT_MAX = 9
"""Maximum number of peers for the exact search. It visits all subsets that contain peer 0: with 9
peers there are 2⁸, each with up to 8 possible ends."""

BETTER_BY = 1.2
"""A new order must be this many times as fast as the current one. Measured rates vary by tens of
per cent from one reduce to the next, and a new order requires new connections."""

_TRIES_MAX = 40_000
"""Maximum number of steps of the search for more than EXACT_MAX peers. With 200 peers, the search
ends within half a second."""
_STARTS = 8
"""Number of starting peers to try before the search for a cycle gives up."""

Rates = Mapping[tuple[PeerId, PeerId], float]
"""Bytes per second by pair, the smaller peer id first; 0 if the two cannot connect."""


Matrix = Sequence[Sequence[float]]
"""The rate of each pair, by the peers' places; the same in both directions."""


@dataclass(frozen=True, slots=True)
class RingOrder:
    peers: tuple[PeerId, ...]
    slowest: float
    """The rate of the slowest edge; infinite if there is no edge."""
    reason: str
    relayed: int = 0
    """The number of edges that need a relay."""


def best_order(
    peers: Sequence[PeerId], rates: Rates, *, assumed: float, current: Sequence[PeerId] = ()
) -> RingOrder:
    """Return the order of `peers` with the fastest bottleneck. It starts with the smallest peer id.

    `assumed` is the rate of pairs that are not in `rates`. The order `current` is kept unless
    another order is BETTER_BY times as fast.
    """
    names = sorted(set(peers))
    matrix = matrix_of(names, rates, assumed)
    if len(names) <= 3:
        found = list(range(len(names)))
    else:
        found = (exact_order if len(names) <= EXACT_MAX else searched_order)(matrix)
    slowest = slowest_edge(matrix, found)
    kept = [names.index(peer) for peer in current if peer in names]
    if len(kept) == len(names) > 0:
        standing = slowest_edge(matrix, kept)
        if slowest < BETTER_BY * standing or slowest == standing:
            present = tuple(names[at] for at in kept)
            return RingOrder(present, standing, "no order is much faster than the current one")
    return RingOrder(
        tuple(names[at] for at in found), slowest, "no order that was tried has a faster bottleneck"
    )


def matrix_of(names: Sequence[PeerId], rates: Rates, assumed: float) -> Matrix:
    """Return the rates between `names`, by their places. `assumed` is the rate of other pairs."""
    return [
        [rates.get((min(a, b), max(a, b)), assumed) if a != b else 0.0 for b in names]
        for a in names
    ]


def slowest_edge(matrix: Matrix, order: Sequence[int]) -> float:
    """Return the rate of the slowest edge of this cycle; infinite if it has no edge."""
    if len(order) < 2:
        return float("inf")
    return min(matrix[a][b] for a, b in pairwise([*order, order[0]]))


def exact_order(matrix: Matrix) -> list[int]:
    """Return the cycle through all peers with the fastest bottleneck. There must be at least two
    peers.

    This is dynamic programming over subsets. For each subset and each of its members, it computes
    the fastest bottleneck of a path that starts at peer 0, passes through the whole subset and ends
    at that member.
    """
    count = len(matrix)
    full = (1 << count) - 1
    best: dict[tuple[int, int], tuple[float, int]] = {(1, 0): (float("inf"), -1)}
    for visited in range(1, full + 1, 2):
        for end in range(count):
            reached = best.get((visited, end))
            if reached is None:
                continue
            for after in range(1, count):
                if not visited >> after & 1:
                    key = visited | 1 << after, after
                    width = min(reached[0], matrix[end][after])
                    if key not in best or width > best[key][0]:
                        best[key] = width, end
    end = max(range(1, count), key=lambda at: min(best[full, at][0], matrix[at][0]))
    order, visited = [], full
    while end >= 0:
        order.append(end)
        before = best[visited, end][1]
        visited, end = visited ^ 1 << end, before
    return order[::-1]


def searched_order(matrix: Matrix) -> list[int]:
    """Return a cycle through all peers with a fast bottleneck, though perhaps not the fastest
    possible. There must be at least three peers.

    This is a bisection over the known rates. It looks for the largest rate at which `_circle` finds
    a cycle whose edges all have at least that rate.
    """
    count = len(matrix)
    rates = sorted({matrix[a][b] for a in range(count) for b in range(a)})
    # Each peer has two edges in a cycle, and one of them is at most as fast as the peer's second
    # fastest edge. The smallest of these rates over all peers bounds the bottleneck.
    bound = min(sorted(row)[-2] for row in matrix)
    found, low, high = list(range(count)), 0, sum(rate <= bound for rate in rates) - 1
    tries = _TRIES_MAX // max(1, high.bit_length() + 1)
    while low <= high:
        middle = (low + high) // 2
        circle = _circle(matrix, rates[middle], tries)
        if circle is None:
            high = middle - 1
        else:
            found, low = circle, middle + 1
            while low <= high and rates[low] <= slowest_edge(matrix, found):
                low += 1
    return found


def _circle(matrix: Matrix, least: float, tries: int) -> list[int] | None:
    """Return a cycle through all peers whose edges have the rate `least` or more; None if `tries`
    steps do not find one.
    """
    count = len(matrix)
    near = [[b for b in range(count) if b != a and matrix[a][b] >= least] for a in range(count)]
    degree = [len(each) for each in near]
    if min(degree) < 2:
        return None
    for each in near:
        each.sort(key=lambda at: (degree[at], at))  # peers with few edges first
    starts = sorted(range(count), key=lambda at: (degree[at], at))[:_STARTS]
    for start in starts:
        found = _rotated(near, start, tries // len(starts))
        if found is not None:
            return found
    return None


def _rotated(near: list[list[int]], start: int, tries: int) -> list[int] | None:
    """Search for a cycle with Pósa's rotations: extend a path at its end. If that is impossible,
    follow an edge from the end back to a peer on the path, and reverse the part of the path after
    that peer. The path then has a new end.
    """
    draw = random.Random(start)  # a fixed seed, so that all peers find the same cycle
    path, place = [start], {start: 0}
    for _ in range(tries):
        end = path[-1]
        fresh = next((at for at in near[end] if at not in place), None)
        if fresh is not None:
            place[fresh] = len(path)
            path.append(fresh)
            continue
        if len(path) == len(near) and start in near[end]:
            return path
        choices = [place[at] for at in near[end] if place[at] < len(path) - 2]
        if not choices:
            return None
        pivot = draw.choice(choices)
        path[pivot + 1 :] = path[:pivot:-1]
        for index in range(pivot + 1, len(path)):
            place[path[index]] = index
    return None

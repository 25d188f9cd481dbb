"""Choose the order of the peers in the ring if some pairs need a relay.

A relay sends the bytes of each pair that it relays, beside those to its own neighbour, over one
uplink. So a relayed edge is as fast as its share of that uplink, which depends on the number of
relayed edges in the whole ring. The best order has the fastest bottleneck with these shares. Of the
orders with this bottleneck, it has the fewest relayed edges, because relayed bytes are a gift of
other members, and each relay has few places.

The relay of a pair is chosen by a hash, which changes with each outer step. This module therefore
assumes that the relays share the edges evenly, and that all are as slow as the slowest one.

Up to EXACT_MAX peers, the search finds the fewest relayed edges for a bottleneck. With more peers,
it takes a limited number of steps. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, inf

from p2ptrain.ids import PeerId
from p2ptrain.ring.order import (
    BETTER_BY,
    EXACT_MAX,
    Matrix,
    Rates,
    RingOrder,
    best_order,
    matrix_of,
    searched_order,
    slowest_edge,
)

Pair = tuple[PeerId, PeerId]

BOTTLENECKS_MAX = 8
"""Maximum number of bottlenecks to try. Each takes about as long as the search for an order."""

PASSES_MAX = 3
"""Maximum number of passes over all pairs of edges, for more than EXACT_MAX peers."""


@dataclass(frozen=True, slots=True)
class Relays:
    """The members that offer to relay: their number, the pairs for which all of them have places,
    and the rate of the slowest one's uplink in bytes per second."""

    count: int = 0
    places: int = 0
    uplink: float = inf

    def __post_init__(self) -> None:
        assert self.count >= 0
        assert self.places >= 0
        assert self.uplink > 0

    def share(self, pairs: int) -> float:
        """Return the rate of each of `pairs` relayed edges, in bytes per second. A relay also sends
        to its own neighbour at this rate."""
        return self.uplink / (1 + ceil(pairs / max(self.count, 1))) if pairs else inf


NO_RELAYS = Relays()


def best_relayed_order(
    peers: Sequence[PeerId],
    rates: Rates,
    *,
    assumed: float,
    current: Sequence[PeerId] = (),
    relayed: Collection[Pair] = (),
    relays: Relays = NO_RELAYS,
) -> RingOrder:
    """Return the order of `peers`. The arguments are those of `best_order`. `relayed` are the pairs
    that need a relay, the smaller peer id first.

    The order `current` is kept unless another order is BETTER_BY times as fast, or has fewer
    relayed edges and is not slower."""
    names = sorted(set(peers))
    pairs = {(names.index(a), names.index(b)) for a, b in relayed if {a, b} <= set(names)}
    if not pairs:
        return best_order(peers, rates, assumed=assumed, current=current)
    matrix = matrix_of(names, rates, assumed)
    first = best_order(peers, rates, assumed=assumed)
    found = _Search(matrix, pairs, relays).best([names.index(peer) for peer in first.peers])
    kept = _Ring(tuple(names.index(peer) for peer in current if peer in names), matrix, pairs)
    if len(kept.order) == len(names):
        slower = found.rate(relays) < BETTER_BY * kept.rate(relays)
        if (slower or found.rate(relays) == kept.rate(relays)) and kept.relayed <= found.relayed:
            return kept.named(names, relays, "no order is much faster than the current one")
    return found.named(names, relays, "no order that was tried is faster or needs fewer relays")


@dataclass(frozen=True, slots=True)
class _Ring:
    """A cycle of the peers' places."""

    order: tuple[int, ...]
    matrix: Matrix
    pairs: Collection[tuple[int, int]]

    @property
    def relayed(self) -> int:
        """The number of relayed edges. Two peers have one edge."""
        edges = {_edge(a, b) for a, b in pairwise([*self.order, *self.order[:1]])}
        return sum(edge in self.pairs for edge in edges)

    def rate(self, relays: Relays) -> float:
        return min(slowest_edge(self.matrix, self.order), relays.share(self.relayed))

    def named(self, names: Sequence[PeerId], relays: Relays, reason: str) -> RingOrder:
        peers = tuple(names[at] for at in self.order)
        return RingOrder(peers, self.rate(relays), reason, self.relayed)


@dataclass(frozen=True, slots=True)
class _Search:
    matrix: Matrix
    pairs: Collection[tuple[int, int]]
    relays: Relays

    def best(self, first: Sequence[int]) -> _Ring:
        """Return the best ring. `first` has the fastest bottleneck without the relays' load.

        A slower bottleneck is tried too, since it may need fewer relayed edges. It cannot help once
        it is slower than the best ring so far."""
        best = _Ring(tuple(first), self.matrix, self.pairs)
        if len(first) <= 3:
            return best  # There is only one cycle.
        starts = [] if len(first) <= EXACT_MAX else [best, self._without_relays()]
        best = max([best, *starts], key=self._worth)
        fastest = slowest_edge(self.matrix, first)
        slower = {rate for row in self.matrix for rate in row if 0 < rate <= fastest}
        for least in sorted(slower, reverse=True)[:BOTTLENECKS_MAX]:
            if least < best.rate(self.relays):
                break
            tries = [self._improved(each, least) for each in starts] or self._exact(least)
            best = max([best, *tries], key=self._worth)
        return best

    def _worth(self, ring: _Ring) -> tuple[float, int]:
        return ring.rate(self.relays), -ring.relayed

    def _exact(self, least: float) -> list[_Ring]:
        """Return the ring with the fewest relayed edges, of those whose edges have at least the
        rate `least`."""
        found = fewest_relayed(self.matrix, self.pairs, least)
        return [] if found is None else [_Ring(tuple(found), self.matrix, self.pairs)]

    def _without_relays(self) -> _Ring:
        """Return a ring with a fast bottleneck and no relayed edge, if the search finds one."""
        direct = [
            [0.0 if _edge(a, b) in self.pairs else rate for b, rate in enumerate(row)]
            for a, row in enumerate(self.matrix)
        ]
        return _Ring(tuple(searched_order(direct)), self.matrix, self.pairs)

    def _improved(self, ring: _Ring, least: float) -> _Ring:
        """Replace two edges by two others as long as this needs fewer relays (2-opt)."""
        order, count = list(ring.order), len(ring.order)

        def gains(i: int, j: int) -> bool:
            a, b, c, d = order[i], order[i + 1], order[j], order[(j + 1) % count]
            old = (_edge(a, b) in self.pairs) + (_edge(c, d) in self.pairs)
            new = (_edge(a, c) in self.pairs) + (_edge(b, d) in self.pairs)
            return new < old and min(self.matrix[a][c], self.matrix[b][d]) >= least

        for _ in range(PASSES_MAX):
            before = list(order)
            for i in range(count - 2):
                for j in range(i + 2, count - (i == 0)):
                    if gains(i, j):
                        order[i + 1 : j + 1] = order[i + 1 : j + 1][::-1]
            if order == before:
                break
        return replace(ring, order=tuple(order))


def fewest_relayed(
    matrix: Matrix, pairs: Collection[tuple[int, int]], least: float
) -> list[int] | None:
    """Return the cycle through all peers with the fewest edges in `pairs`, all of whose edges have
    at least the rate `least`; None if there is no such cycle. There must be at least two peers.

    This is dynamic programming over subsets, as in `exact_order`."""
    count = len(matrix)
    best: dict[tuple[int, int], tuple[int, int]] = {(1, 0): (0, -1)}
    for visited in range(1, 1 << count, 2):
        for end in range(count):
            reached = best.get((visited, end))
            if reached is None:
                continue
            for after in range(1, count):
                if visited >> after & 1 or matrix[end][after] < least:
                    continue
                key = visited | 1 << after, after
                needed = reached[0] + (_edge(end, after) in pairs)
                if key not in best or needed < best[key][0]:
                    best[key] = needed, end
    full = (1 << count) - 1
    closing = [at for at in range(1, count) if (full, at) in best and matrix[at][0] >= least]
    if not closing:
        return None
    end = min(closing, key=lambda at: best[full, at][0] + (_edge(at, 0) in pairs))
    order, visited = [], full
    while end >= 0:
        order.append(end)
        visited, end = visited ^ 1 << end, best[visited, end][1]
    return order[::-1]


def _edge(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)

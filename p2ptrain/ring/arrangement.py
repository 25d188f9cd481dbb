"""Choose the order of the peers and the schedule with the smallest estimated time.

    seconds = hops × delay + bytes ÷ rate, for the path or uplink that takes longest
              + time to connect, for each connection of the peer with the most neighbours
              + the time of a lost attempt, for each pair for which no relay has a place

The ring uses the fewest paths and has the fewest bytes in flight, but it has the most hops. It is
fastest for large vectors, `direct` for small vectors over long distances, and `grid` in between if
there are many peers. A ring rounds a sum at each hop. With a codec of 4 bits and many peers, this
adds too much error, so in that case a ring is used only if no other schedule can connect.

Some pairs need a relay. The uplink of a relay also carries the bytes of the pairs that it relays,
so an order or a schedule with fewer such pairs may be faster (`relayed_order`).

Measured rates vary, so the current choice is kept unless another is much faster. A pair that cannot
connect has rate 0, and a plan that needs such a pair takes infinite time.

The functions are pure: they do not measure anything.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isinf

from p2ptrain.ids import PeerId
from p2ptrain.ring.order import BETTER_BY, Rates
from p2ptrain.ring.relayed_order import NO_RELAYS, Pair, Relays, best_relayed_order
from p2ptrain.ring.schedules import SCHEDULES, Schedule, routes
from p2ptrain.ring.streams import streams_for

RATE_ASSUMED = 12.5e6
"""Bytes per second assumed for every path if no path was measured: 100 Mbit/s."""

DELAY_ASSUMED_S = 0.02
"""One-way delay assumed for a path that was not measured, as on a path across half a continent."""

CONNECT_S = 0.004
"""CPU seconds of a mutual TLS handshake at each end, per connection. Nodes open new connections for
each attempt."""

NEIGHBOURS_MAX = 62
"""Maximum number of neighbours of a peer: a quarter of the connections that a data plane accepts.
In a grid of a thousand peers, a peer has 62 neighbours."""

COARSE_RING_PEERS_MAX = 4
"""Maximum number of peers for which a ring may be chosen with a codec of 4 bits. The relative error
of a mean is 0.17 with 4 peers in a ring, 0.33 with 16 and 0.71 with 64; with `direct` it is 0.15
and with `grid` at most 0.18 (docs/results/kernels.md)."""

ATTEMPT_LOST_S = 30.0
"""Seconds that it costs if no relay has a place for a pair: the attempt fails when its deadline for
connecting is over, and one of the pair sits out the next one."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Rates and delays of the paths between peers. In a pair, the smaller peer id comes first.
    Rates are in bytes per second, or 0 if the two cannot connect. Delays are one-way. `relayed` are
    the pairs that will probably need one of the `relays`.
    """

    rates: Rates
    delays_s: Mapping[Pair, float]
    relayed: Collection[Pair] = field(default=frozenset())
    relays: Relays = NO_RELAYS

    @property
    def assumed(self) -> float:
        """The rate assumed for paths that were not measured: the median of the known rates."""
        known = [rate for rate in self.rates.values() if rate > 0]
        return statistics.median_low(known) if known else RATE_ASSUMED


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A schedule and an order of the peers. `barred` lists the neighbours in this order that cannot
    connect to each other; if there are any, `seconds` is infinite.
    """

    schedule: Schedule
    peers: tuple[PeerId, ...]
    seconds: float
    reason: str
    barred: tuple[Pair, ...] = ()


def arrangement(
    peers: Sequence[PeerId],
    payload_bytes: int,
    paths: Paths,
    *,
    current: tuple[Schedule, Sequence[PeerId]] = ("ring", ()),
    is_coarse: bool = False,
) -> Arrangement:
    """Return how `peers` should average a vector of `payload_bytes`. `current` is the schedule and
    the order of the last reduce of all or most of these peers. `is_coarse` is True for a codec of 4
    bits.
    """
    stands, last = current
    remaining = [peer for peer in last if peer in set(peers)]
    order = best_relayed_order(
        peers,
        paths.rates,
        assumed=paths.assumed,
        current=remaining,
        relayed=paths.relayed,
        relays=paths.relays,
    )
    seconds = {
        schedule: estimate_s(schedule, order.peers, payload_bytes, paths)
        for schedule in SCHEDULES
        if schedule == "ring" or _loads(schedule, len(peers)).neighbours <= NEIGHBOURS_MAX
    }
    allowed = _precise(seconds) if is_coarse and len(peers) > COARSE_RING_PEERS_MAX else seconds
    best = min(allowed, key=lambda schedule: seconds[schedule])
    if isinf(seconds[best]):
        barred = _barred(order.peers, paths)
        names = "; ".join(f"{a} and {b}" for a, b in barred)
        reason = f"no order of the peers avoids pairs that cannot connect: {names}"
        return Arrangement("ring", order.peers, inf, reason, barred)
    standing = stands if stands in seconds else "ring"
    if standing in allowed and seconds[standing] <= BETTER_BY * seconds[best]:
        best = standing
    compared = ", ".join(f"{each} {_words(seconds[each])}" for each in seconds)
    reason = f"estimated: {compared}"
    if "ring" not in allowed:
        reason += f"; with 4 bits, a ring of {len(peers)} would add too much rounding error"
    if relayed := len(_relayed(best, order.peers, paths)):
        reason += f"; pairs that need a relay: {relayed}, of {paths.relays.places} places"
    reason += f"; the order: {order.reason}"
    return Arrangement(best, order.peers, seconds[best], reason)


def _precise(seconds: Mapping[Schedule, float]) -> Mapping[Schedule, float]:
    """Return the schedules other than the ring that can connect; if there are none, all
    schedules.
    """
    others: dict[Schedule, float] = {
        each: took for each, took in seconds.items() if each != "ring" and not isinf(took)
    }
    return others or seconds


def estimate_s(
    schedule: Schedule, order: Sequence[PeerId], payload_bytes: int, paths: Paths
) -> float:
    """Return the estimated seconds of a reduce, from the first connection to the last byte."""
    count = len(order)
    if count < 2:
        return 0.0
    loads, part_bytes, assumed = _loads(schedule, count), payload_bytes / count, paths.assumed
    uplinks = dict.fromkeys(order, 0.0)
    slowest_s, delays_s = 0.0, []
    for (a, b), parts in loads.pairs.items():
        pair = _pair(order[a], order[b])
        rate = paths.rates.get(pair, assumed)
        if rate <= 0:
            return inf
        slowest_s = max(slowest_s, parts * part_bytes / rate)
        delays_s.append(paths.delays_s.get(pair, DELAY_ASSUMED_S))
        for peer in pair:
            uplinks[peer] = max(uplinks[peer], rate)
    for place, parts in loads.sent.items():
        slowest_s = max(slowest_s, parts * part_bytes / uplinks[order[place]])
    relayed, relays = _relayed(schedule, order, paths), paths.relays
    if relayed and relays.count:
        passed_on = sum(loads.both[pair] for pair in relayed) / relays.count
        busiest = max(loads.sent.values()) + passed_on
        slowest_s = max(slowest_s, busiest * part_bytes / relays.uplink)
    lost_s = ATTEMPT_LOST_S * max(len(relayed) - relays.places, 0)
    # In a ring, a part takes all paths in turn, so the mean delay counts. In other schedules, every
    # hop of a part may be on a slow path, so the longest delay counts.
    delay_s = statistics.fmean(delays_s) if schedule == "ring" else max(delays_s)
    connections = loads.neighbours * streams_for(schedule, count, payload_bytes)
    return loads.hops * delay_s + slowest_s + CONNECT_S * connections + lost_s


@dataclass(frozen=True, slots=True)
class _Loads:
    """The load of a schedule. Peers are numbered by their position in the order.

    `pairs` counts the parts sent between two peers, in the busier direction, and `both` those in
    both directions. `sent` counts the parts that each peer sends. `hops` is the number of hops from
    the first contribution to the last mean. `neighbours` is the largest number of neighbours of any
    peer.
    """

    pairs: Mapping[tuple[int, int], int]
    both: Mapping[tuple[int, int], int]
    sent: Mapping[int, int]
    hops: int
    neighbours: int


@lru_cache(maxsize=16)
def _loads(schedule: Schedule, count: int) -> _Loads:
    directed: Counter[tuple[int, int]] = Counter()
    hops = 0
    for me in range(count):
        for route in routes(schedule, count, me):
            onward = () if route.sum_to is None else (route.sum_to,)
            directed.update((me, to) for to in (*onward, *route.means_to))
            hops = max(hops, route.mean_hop if route.means_to else 0)
    pairs: dict[tuple[int, int], int] = {}
    both: Counter[tuple[int, int]] = Counter()
    sent: Counter[int] = Counter()
    partners: dict[int, set[int]] = {me: set() for me in range(count)}
    for (a, b), parts in directed.items():
        pair = (min(a, b), max(a, b))
        pairs[pair] = max(parts, pairs.get(pair, 0))
        both[pair] += parts
        sent[a] += parts
        partners[a].add(b)
        partners[b].add(a)
    return _Loads(pairs, both, sent, hops + 1, max(map(len, partners.values()), default=0))


def _relayed(schedule: Schedule, order: Sequence[PeerId], paths: Paths) -> list[tuple[int, int]]:
    """Return the pairs of this schedule that need a relay, by their places in the order."""
    if not paths.relayed:
        return []
    pairs = _loads(schedule, len(order)).pairs
    return [(a, b) for a, b in pairs if _pair(order[a], order[b]) in paths.relayed]


def _barred(order: Sequence[PeerId], paths: Paths) -> tuple[Pair, ...]:
    """Return the neighbours in a ring of this order that cannot connect."""
    used = {_pair(order[a], order[b]) for a, b in _loads("ring", len(order)).pairs}
    return tuple(sorted(pair for pair in used if paths.rates.get(pair) == 0))


def _pair(a: PeerId, b: PeerId) -> Pair:
    return (a, b) if a < b else (b, a)


def _words(seconds: float) -> str:
    return "impossible" if isinf(seconds) else f"{seconds:.2g} s"

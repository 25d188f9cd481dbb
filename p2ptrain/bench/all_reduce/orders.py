"""`p2ptrain bench allreduce --bad-link`: measure the best and worst ring order with one slow link.

Rings in the best and in the worst order take turns. All peers are processes on one machine: their
uplinks are limited, and the bad link is a relay with a limit of its own (see `slow_link`). The
orders are computed from these limits, and not from rates that nodes would measure.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations, starmap

from p2ptrain.bench.all_reduce.averaging import AverageSetting, name_of_peer
from p2ptrain.bench.all_reduce.comparison import AllreduceReport, measured_here, together_of
from p2ptrain.bench.lines import FigureLine, machine
from p2ptrain.ids import PeerId
from p2ptrain.ring.order import Rates, best_order

HEALTHY = 4.0
"""Factor by which the other links are faster than the bad one."""

PEERS_MAX = 8
"""Maximum number of peers: the search for the worst order tries all orders."""


def measure(peers: int, elements: int, bad_link_bytes_per_s: float, rounds: int) -> AllreduceReport:
    """Measure the best and the worst order alternately, `rounds` times each.

    Raises ValueError: `peers` is too small or too large for the comparison.
    """
    if not 4 <= peers <= PEERS_MAX:
        raise ValueError(
            f"the number of peers must be 4 to {PEERS_MAX}: fewer peers use every link in any order"
        )
    usual = AverageSetting(
        peers=peers,
        elements=elements,
        repeats=1,
        limit_bytes_per_s=HEALTHY * bad_link_bytes_per_s,
        slow_link=(0, 1, bad_link_bytes_per_s),
    )
    names = {name_of_peer(number): number for number in range(peers)}
    rates = rates_of(list(names), usual)
    best = best_order(list(names), rates, assumed=0.0).peers
    orders = {"best": best, "worst": worst_order(list(names), rates)}
    before = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {name: [] for name in orders}
    for _ in range(rounds):
        for name, order in orders.items():
            setting = replace(usual, order=tuple(names[peer] for peer in order))
            seconds[name].append(together_of(setting, measured_here(setting)).seconds)
    return AllreduceReport((*_lines(seconds), *machine(before)))


def rates_of(peers: Sequence[PeerId], setting: AverageSetting) -> Rates:
    """Return the rate of each pair of `peers`, which are sorted by number."""
    assert setting.slow_link is not None
    *ends, slow = setting.slow_link
    usual = dict.fromkeys(starmap(_pair, combinations(peers, 2)), setting.limit_bytes_per_s)
    return usual | {_pair(*(peers[int(end)] for end in ends)): slow}


def worst_order(peers: Sequence[PeerId], rates: Rates) -> tuple[PeerId, ...]:
    """Return the order that has the slowest edge of all orders."""
    first, *rest = peers
    circles = ((first, *others) for others in permutations(rest))
    return min(circles, key=lambda circle: _slowest(circle, rates))


def _slowest(circle: Sequence[PeerId], rates: Rates) -> float:
    return min(rates[_pair(a, b)] for a, b in pairwise([*circle, circle[0]]))


def _pair(a: PeerId, b: PeerId) -> tuple[PeerId, PeerId]:
    return (a, b) if a < b else (b, a)


def _lines(seconds: Mapping[str, Sequence[float]]) -> Iterator[FigureLine]:
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, median_s in medians.items():
        yield FigureLine(f"ring in the {name} order", median_s, "s")
    ratio = medians["worst"] / medians["best"]
    yield FigureLine("ring in the best order", ratio, "× as fast as", "in the worst")

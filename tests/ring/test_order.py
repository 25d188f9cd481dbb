"""The chosen order is the best order or almost as good. It is found quickly, and is not replaced by
one that is hardly better.
"""

from __future__ import annotations

import random
import time
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.ids import PeerId
from p2ptrain.ring.order import (
    BETTER_BY,
    Rates,
    RingOrder,
    best_order,
    exact_order,
    searched_order,
    slowest_edge,
)


def named(count: int) -> list[PeerId]:
    return [PeerId(f"peer-{number:03}") for number in range(count)]


def random_rates(count: int, seed: int) -> dict[tuple[PeerId, PeerId], float]:
    """Make random rates like those between sites: distant pairs are slow, and a few pairs are much
    slower.
    """
    draw = random.Random(seed)
    names = named(count)
    at = {name: (draw.random(), draw.random()) for name in names}
    rates = {}
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            far = abs(at[a][0] - at[b][0]) + abs(at[a][1] - at[b][1])
            rates[a, b] = (
                draw.uniform(0.5, 1.5) / (0.05 + far) * (0.1 if draw.random() < 0.1 else 1)
            )
    return rates


def slowest_of(order: tuple[PeerId, ...], rates: Rates, assumed: float = 0.0) -> float:
    return min(rates.get((min(a, b), max(a, b)), assumed) for a, b in pairwise([*order, order[0]]))


def matrix_of(names: list[PeerId], rates: Rates) -> list[list[float]]:
    return [[0.0 if a == b else rates[min(a, b), max(a, b)] for b in names] for a in names]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("seed", range(5))
def test_few_peers_get_the_order_that_brute_force_finds(count: int, seed: int) -> None:
    names, rates = named(count), random_rates(count, seed)
    found = best_order(names, rates, assumed=0.0)
    brute = max(slowest_of((names[0], *rest), rates) for rest in permutations(names[1:]))
    assert sorted(found.peers) == names
    assert found.slowest == slowest_of(found.peers, rates) == brute


@pytest.mark.parametrize("count", [8, 9, 10, 11])
@pytest.mark.parametrize("seed", range(6))
def test_heuristic_is_within_a_twentieth_of_the_exact_result(count: int, seed: int) -> None:
    names = named(count)
    matrix = matrix_of(names, random_rates(count, 100 + seed))
    best = slowest_edge(matrix, exact_order(matrix))
    near = slowest_edge(matrix, searched_order(matrix))
    assert 0.95 * best <= near <= best


def test_two_hundred_peers_are_ordered_within_a_second() -> None:
    names, rates = named(200), random_rates(200, 1)
    begun = time.process_time()
    found = best_order(names, rates, assumed=0.0)
    assert time.process_time() - begun < 1.0
    assert sorted(found.peers) == names
    matrix = matrix_of(names, rates)
    assert found.slowest >= 0.5 * min(sorted(row)[-2] for row in matrix)


def test_slow_links_are_left_out() -> None:
    names = named(4)
    rates = {(names[0], names[1]): 1.0, (names[2], names[3]): 2.0}
    found = best_order(names, rates, assumed=10.0)
    assert found.slowest == 10.0
    assert found.peers in tuple(
        (names[0], *middle, names[at])
        for middle, at in (((names[2], names[1]), 3), ((names[3], names[1]), 2))
    )


def test_pairs_that_cannot_connect_are_avoided_where_possible() -> None:
    """Peers 0, 1 and 2 cannot be dialled, so no two of them are neighbours."""
    names = named(6)
    rates = {(names[a], names[b]): 0.0 for a in range(3) for b in range(a + 1, 3)}
    found = best_order(names, rates, assumed=5.0)
    assert found.slowest == 5.0
    impossible = best_order(names[:5], rates, assumed=5.0)
    assert impossible.slowest == 0.0


def test_current_order_is_kept_unless_another_is_much_faster() -> None:
    names = named(4)
    present = (names[0], names[1], names[2], names[3])
    rates = {(names[1], names[2]): 10.0 / BETTER_BY * 1.01}
    kept = best_order(names, rates, assumed=10.0, current=present)
    assert kept.peers == present
    rates = {(names[1], names[2]): 10.0 / BETTER_BY * 0.99}
    left = best_order(names, rates, assumed=10.0, current=present)
    assert left.peers != present
    assert left.slowest == 10.0


def test_current_order_of_other_peers_is_ignored() -> None:
    names = named(4)
    found = best_order(names, {}, assumed=1.0, current=[names[2], names[1], names[0]])
    assert sorted(found.peers) == names


@pytest.mark.parametrize("count", [0, 1])
def test_ring_without_edges_has_no_slowest_edge(count: int) -> None:
    assert best_order(named(count), {}, assumed=1.0) == RingOrder(
        tuple(named(count)), float("inf"), "no order that was tried has a faster bottleneck"
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 14), st.integers(0, 1000), st.randoms())
def test_order_does_not_depend_on_the_order_of_the_input(
    count: int, seed: int, shuffle: random.Random
) -> None:
    names, rates = named(count), random_rates(count, seed)
    shuffled = list(names)
    shuffle.shuffle(shuffled)
    assert best_order(shuffled, rates, assumed=1.0) == best_order(names, rates, assumed=1.0)

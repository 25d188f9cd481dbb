"""The ring has few edges that need a relay, and the relays' uplinks count as bottlenecks."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from math import inf

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ring.arrangement import ATTEMPT_LOST_S, Paths, arrangement, estimate_s
from p2ptrain.ring.order import BETTER_BY, best_order
from p2ptrain.ring.relayed_order import Pair, Relays, best_relayed_order

ONE = Relays(count=1, places=2, uplink=12e6)


def named(count: int) -> tuple[PeerId, ...]:
    return tuple(PeerId(f"peer-{number:03}") for number in range(count))


def among(peers: tuple[PeerId, ...]) -> frozenset[Pair]:
    return frozenset(combinations(sorted(peers), 2))


def edges(order: tuple[PeerId, ...]) -> set[Pair]:
    return {(min(pair), max(pair)) for pair in pairwise([*order, order[0]])}


def test_share_of_a_relay_falls_with_the_edges_that_it_carries() -> None:
    """A relay sends to its own neighbour too. Two relays carry two edges each."""
    two = Relays(count=2, places=4, uplink=12e6)
    assert [ONE.share(pairs) for pairs in (0, 1, 2)] == [inf, 6e6, 4e6]
    assert [two.share(pairs) for pairs in (1, 2, 3, 4)] == [6e6, 6e6, 4e6, 4e6]


def test_of_equally_fast_orders_the_one_with_fewest_relayed_edges_is_chosen() -> None:
    """Three of six peers need a relay among themselves. Paths are alike, so that the search by
    rates alone sees no difference."""
    peers = named(6)
    relayed = among(peers[:3])
    found = best_relayed_order(peers, {}, assumed=1e6, relayed=relayed, relays=ONE)
    assert (found.relayed, found.slowest) == (0, 1e6)
    assert edges(found.peers).isdisjoint(relayed)


def test_ring_of_members_that_all_need_a_relay_says_how_many_edges_do() -> None:
    """One member of six can be dialled, so four edges are relayed whatever the order."""
    peers = named(6)
    relayed = among(peers[1:])
    found = best_relayed_order(peers, {}, assumed=10e6, relayed=relayed, relays=ONE)
    assert (found.relayed, found.slowest) == (4, ONE.share(4))


def test_slow_direct_path_is_better_than_an_overloaded_relay() -> None:
    """With the fast direct paths only, two edges need the relay, which then gives each 4 MB/s. One
    direct path of 5 MB/s instead leaves one relayed edge, which gets 6 MB/s."""
    a, b, c, d = peers = named(4)
    rates = {(a, b): 10e6, (a, c): 10e6, (c, d): 10e6, (b, c): 1e6, (a, d): 5e6, (b, d): 10e6}
    relayed = frozenset({(c, d), (a, b)})
    found = best_relayed_order(peers, rates, assumed=0.0, relayed=relayed, relays=ONE)
    assert best_order(peers, rates, assumed=0.0).slowest == 10e6
    assert (found.relayed, found.slowest) == (2, ONE.share(2)), "the other cycles are slower still"
    faster = rates | {(b, c): 5e6}
    found = best_relayed_order(peers, faster, assumed=0.0, relayed=relayed, relays=ONE)
    assert (found.relayed, found.slowest) == (0, 5e6)


@pytest.mark.parametrize("seed", range(6))
def test_few_peers_get_the_order_that_brute_force_finds(seed: int) -> None:
    draw, peers = random.Random(seed), named(6)
    pairs = sorted(among(peers))
    rates = {pair: float(draw.randint(1, 6)) for pair in pairs}
    relayed = frozenset(draw.sample(pairs, 7))
    relays = Relays(count=draw.randint(1, 2), places=2, uplink=draw.choice([6.0, 12.0]))

    def worth(order: tuple[PeerId, ...]) -> tuple[float, int]:
        used = edges(order)
        count = len(used & relayed)
        return min(relays.share(count), *(rates[pair] for pair in used)), -count

    found = best_relayed_order(peers, rates, assumed=0.0, relayed=relayed, relays=relays)
    best = max(worth((peers[0], *rest)) for rest in permutations(peers[1:]))
    assert (found.slowest, -found.relayed) == worth(found.peers) == best


def test_current_order_is_kept_unless_another_needs_fewer_relays_or_is_much_faster() -> None:
    a, b, c, d, *_ = peers = named(4)
    relayed = frozenset({(a, b)})
    for current, kept in (((a, b, c, d), False), ((a, c, b, d), True)):
        found = best_relayed_order(
            peers, {}, assumed=1e6, current=current, relayed=relayed, relays=ONE
        )
        assert (found.peers == current) == kept
        assert found.relayed == 0
    slow = {(a, c): 1e6 / BETTER_BY * 1.01}
    kept_order = best_relayed_order(
        peers, slow, assumed=1e6, current=(a, c, b, d), relayed=relayed, relays=ONE
    )
    assert kept_order.peers == (a, c, b, d)


def test_hundred_peers_are_ordered_quickly_with_few_relayed_edges() -> None:
    """Forty of them need relays among themselves, and no edge has to be relayed."""
    draw, peers = random.Random(3), named(100)
    relayed = among(peers[:40])
    rates = {pair: draw.uniform(1e6, 2e6) for pair in sorted(among(peers))}
    began_s = time.process_time()
    found = best_relayed_order(peers, rates, assumed=0.0, relayed=relayed, relays=ONE)
    assert time.process_time() - began_s < 5.0
    assert sorted(found.peers) == list(peers)
    assert found.relayed == 0


# ── the schedule ─────────────────────────────────────────────────────────────────────────────────


def test_schedule_with_more_relayed_pairs_than_places_is_avoided() -> None:
    """`direct` needs ten relayed pairs and a ring four, of which one relay has places for two."""
    peers = named(6)
    free = Paths(dict.fromkeys(among(peers), 12.5e6), {})
    relayed = replace(free, relayed=among(peers[1:]), relays=ONE)
    assert arrangement(peers, 1_000, free).schedule == "direct"
    found = arrangement(peers, 1_000, relayed)
    assert found.schedule == "ring"
    assert "pairs that need a relay: 4, of 2 places" in found.reason
    ring_s, direct_s = (
        estimate_s(schedule, peers, 1_000, relayed) for schedule in ("ring", "direct")
    )
    assert direct_s - ring_s == pytest.approx(6 * ATTEMPT_LOST_S, abs=1.0)


def test_relayed_bytes_take_the_time_of_the_relays_uplink() -> None:
    """Each peer of a ring of four sends six parts. The relay sends the six of one pair too."""
    peers = named(4)
    relays = Relays(count=1, places=2, uplink=1e6)
    paths = Paths(dict.fromkeys(among(peers), 1e6), {}, frozenset({(peers[0], peers[1])}), relays)
    alone = replace(paths, relayed=frozenset())
    seconds = [estimate_s("ring", peers, 4_000_000, each) for each in (alone, paths)]
    assert seconds[1] - seconds[0] == pytest.approx(6.0)

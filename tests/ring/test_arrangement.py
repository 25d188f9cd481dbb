"""`arrangement` chooses the fastest schedule and the best order of peers, and states the reason."""

from __future__ import annotations

import time
from itertools import combinations, pairwise
from math import inf

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ring.arrangement import (
    NEIGHBOURS_MAX,
    RATE_ASSUMED,
    Arrangement,
    Paths,
    arrangement,
    estimate_s,
)
from p2ptrain.ring.schedules import SCHEDULES, Schedule

NOTHING_KNOWN = Paths({}, {})


def named(count: int) -> tuple[PeerId, ...]:
    return tuple(PeerId(f"peer-{number:03}") for number in range(count))


def alike(peers: tuple[PeerId, ...], rate: float, delay_s: float) -> Paths:
    pairs = list(combinations(sorted(peers), 2))
    return Paths(dict.fromkeys(pairs, rate), dict.fromkeys(pairs, delay_s))


FAR = alike(named(16), 62.5e6, 0.05)
"""The setting measured in docs/results/allreduce.md: 16 peers, round trips of 100 ms, 500
Mbit/s.
"""


@pytest.mark.parametrize(
    ("payload_bytes", "chosen"), [(250_000, "direct"), (1_000_000, "direct"), (1 << 30, "ring")]
)
def test_small_vectors_use_direct_and_large_ones_the_ring(
    payload_bytes: int, chosen: Schedule
) -> None:
    assert arrangement(named(16), payload_bytes, FAR).schedule == chosen


def test_estimate_is_hops_times_delay_plus_transfer_plus_setup() -> None:
    four = named(4)
    paths = alike(four, 1e6, 0.1)
    ring, direct, grid = (estimate_s(each, four, 4_000_000, paths) for each in SCHEDULES)
    assert ring == pytest.approx(6 * 0.1 + 6.0 + 2 * 3 * 0.004)  # 2 neighbours, 3 connections each
    assert direct == pytest.approx(2 * 0.1 + 6.0 + 3 * 0.004)  # 3 neighbours, but only one uplink
    assert grid == pytest.approx(4 * 0.1 + 6.0 + 2 * 0.004)


def test_slow_path_slows_a_ring_more_than_a_direct_reduce() -> None:
    four = named(4)
    paths = alike(four, 1e6, 0.0)
    slow = Paths({**paths.rates, (four[0], four[1]): 1e5}, paths.delays_s)
    assert estimate_s("ring", four, 4_000_000, slow) == pytest.approx(60.024)
    assert estimate_s("direct", four, 4_000_000, slow) == pytest.approx(20.012)
    found = arrangement(four, 4_000_000, slow)
    assert found.seconds == pytest.approx(6.024)  # The ring avoids the slow path.
    assert {four[0], four[1]} not in (
        {a, b} for a, b in zip(found.peers, found.peers[1:] + found.peers[:1], strict=True)
    )


def test_unmeasured_path_is_assumed_to_be_typical() -> None:
    a, b, c = named(3)
    assert NOTHING_KNOWN.assumed == RATE_ASSUMED
    assert Paths({(a, b): 1e6, (a, c): 0.0, (b, c): 3e6}, {}).assumed == 1e6


def test_reason_names_every_schedule_that_was_compared() -> None:
    found = arrangement(named(16), 250_000, FAR)
    assert found.reason == (
        "estimated: ring 1.5 s, direct 0.17 s, grid 0.23 s; "
        "the order: no order that was tried has a faster bottleneck"
    )


@pytest.mark.parametrize(
    ("delay_s", "after_ring", "after_direct"),
    [(0.5, "direct", "direct"), (0.0011, "ring", "direct"), (0.0001, "ring", "grid")],
)
def test_current_schedule_is_kept_unless_another_is_much_faster(
    delay_s: float, after_ring: Schedule, after_direct: Schedule
) -> None:
    """With a delay of 1.1 ms, `grid` would take a sixth less time than `ring` and than `direct`."""
    peers, paths = named(4), alike(named(4), 1e9, delay_s)
    assert arrangement(peers, 0, paths, current=("ring", peers)).schedule == after_ring
    assert arrangement(peers, 0, paths, current=("direct", peers)).schedule == after_direct


def test_order_of_the_remaining_peers_is_kept_when_one_leaves() -> None:
    peers = named(6)
    last = (peers[3], peers[0], peers[5], peers[1], peers[2], peers[4])
    found = arrangement(peers[:5], 1 << 30, alike(peers, 1e6, 0.01), current=("ring", last))
    assert found.peers == (peers[3], peers[0], peers[1], peers[2], peers[4])


def test_schedule_that_needs_an_impossible_connection_is_avoided() -> None:
    peers = named(6)
    far = alike(peers, 1e9, 0.5)
    barred = (peers[0], peers[1])
    found = arrangement(peers, 0, Paths({**far.rates, barred: 0.0}, far.delays_s))
    assert found.schedule != "direct"
    assert found.seconds < inf
    assert found.barred == ()
    assert "direct impossible" in found.reason


def test_unavoidable_impossible_connection_is_reported() -> None:
    a, b, c = named(3)
    found = arrangement((a, b, c), 1000, Paths({(a, b): 0.0}, {}))
    assert found == Arrangement(
        "ring",
        (a, b, c),
        inf,
        "no order of the peers avoids pairs that cannot connect: peer-000 and peer-001",
        ((a, b),),
    )


def test_four_bit_codec_avoids_a_ring_of_more_than_four_peers() -> None:
    """Each hop of a ring rounds the sum. With a more precise codec, a vector of 2 GB would be
    averaged in a ring.
    """
    for count, chosen in ((4, "ring"), (5, "direct"), (16, "direct"), (64, "grid")):
        peers = named(count)
        current: tuple[Schedule, tuple[PeerId, ...]] = ("ring", peers)
        paths = alike(peers, 62.5e6, 0.05)
        found = arrangement(peers, 1 << 31, paths, current=current, is_coarse=True)
        assert found.schedule == chosen
        assert ("would add too much rounding error" in found.reason) == (chosen != "ring")
        assert arrangement(peers, 1 << 31, paths, current=current).schedule == "ring"


def test_four_bit_codec_uses_a_ring_if_no_other_schedule_can_connect() -> None:
    peers = named(6)
    rates = dict.fromkeys(combinations(peers, 2), 0.0)
    rates |= dict.fromkeys(pairwise(peers), 1e6)
    rates[peers[0], peers[5]] = 1e6
    found = arrangement(peers, 1_000_000, Paths(rates, {}), is_coarse=True)
    assert (found.schedule, found.barred) == ("ring", ())
    assert "direct impossible, grid impossible" in found.reason


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_peers_have_only_one_arrangement(count: int) -> None:
    found = arrangement(named(count), 1000, NOTHING_KNOWN)
    assert (found.schedule, found.peers) == ("ring", named(count))


def test_many_peers_are_arranged_quickly_without_the_direct_schedule() -> None:
    peers = named(200)
    paths = alike(peers, 1e8, 0.05)
    begun = time.process_time()
    found = arrangement(peers, 1_000_000, paths)
    assert time.process_time() - begun < 5.0
    assert found.schedule == "grid"
    assert "direct" not in found.reason
    assert "direct" in arrangement(peers[: NEIGHBOURS_MAX + 1], 1_000, paths).reason
    assert "direct" not in arrangement(peers[: NEIGHBOURS_MAX + 2], 1_000, paths).reason

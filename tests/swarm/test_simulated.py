"""In simulated swarms the picker is fast and makes few superfluous requests, whatever the sources
do.
"""

from __future__ import annotations

import math
import random

import pytest

from p2ptrain.swarm.patience import PATIENCE_UNKNOWN_S
from p2ptrain.swarm.picker import IN_FLIGHT_MAX
from tests.swarm.crowd import SEED, Crowd
from tests.swarm.simulated import Source, run

MBIT_100 = 100e6 / 8 / (4 * 2**20)
"""The rate of a 100 Mbit/s link, in chunks per second."""

GIGABYTE = 239
"""The number of chunks in a gigabyte."""


def test_four_equal_sources_are_fully_used() -> None:
    outcome = run({name: Source(MBIT_100) for name in "abcd"}, GIGABYTE)
    assert outcome.done
    assert outcome.seconds * 4 * MBIT_100 < GIGABYTE / 0.95
    assert sum(outcome.asked.values()) <= GIGABYTE + 4


def test_bad_and_dying_sources_cost_little_time() -> None:
    sources = {name: Source(MBIT_100) for name in "abcd"}
    sources["c"].garbage = True
    sources["d"].gone_at = 10.0
    outcome = run(sources, GIGABYTE)
    assert outcome.done
    assert outcome.asked["c"] <= 2
    assert outcome.seconds * 2 * MBIT_100 < GIGABYTE / 0.85


def test_slow_source_helps_and_does_not_delay_the_end() -> None:
    fast = {name: Source(MBIT_100) for name in "abc"}
    outcome = run(fast | {"slow": Source(MBIT_100 / 50)}, GIGABYTE)
    assert outcome.done
    assert outcome.seconds * 3 * MBIT_100 < GIGABYTE / 0.95
    assert "slow" in outcome.asked


def test_stuck_source_does_not_delay_the_fetch() -> None:
    sources = {name: Source(MBIT_100) for name in "abcd"}
    sources["b"].stuck_at = 3.0
    outcome = run(sources, GIGABYTE)
    assert outcome.done
    assert outcome.seconds * 3 * MBIT_100 < GIGABYTE / 0.95


def test_chunks_of_a_source_that_becomes_slow_are_requested_elsewhere() -> None:
    sources = {name: Source(MBIT_100) for name in "ab"}
    sources["b"].slow_from, sources["b"].slowed = 5.0, 0.02
    outcome = run(sources, 60)
    assert outcome.done
    assert outcome.seconds < 60 / MBIT_100


def test_faster_source_has_more_open_requests() -> None:
    sources = {"fast": Source(40.0, rtt_s=0.2), "slow": Source(0.25, rtt_s=0.2)}
    outcome = run(sources, 1000)
    assert outcome.done
    assert outcome.open_max["fast"] == IN_FLIGHT_MAX
    assert outcome.open_max["slow"] <= 5
    assert outcome.seconds < 1000 / 40 * 1.05


def test_latency_delays_a_fetch_once_and_not_for_each_chunk() -> None:
    outcome = run({"far": Source(10.0, rtt_s=0.5)}, 200)
    assert outcome.seconds < 200 / 10 + 4 * 0.5


def test_source_without_chunks_does_not_delay_the_fetch() -> None:
    """A peer that has only just joined must not delay hundreds of chunks by answering "missing"."""
    sources = {"full": Source(MBIT_100), "new": Source(100.0, holds=frozenset())}
    outcome = run(sources, 100)
    assert outcome.done
    assert outcome.open_max["new"] <= 2
    assert outcome.seconds < 100 / MBIT_100 * 1.05


def test_source_that_never_has_a_chunk_is_asked_less_and_less_often() -> None:
    empty = {name: Source(100.0, holds=frozenset()) for name in "abc"}
    outcome = run(empty | {"full": Source(0.05)}, 180)
    assert outcome.done
    assert 3500 < outcome.seconds < 3700
    assert all(outcome.asked[name] < 180 + 1000 for name in empty)


def draw(rng: random.Random) -> Source:
    """Return a random source."""
    return Source(
        chunks_per_s=math.exp(rng.uniform(-3, 4)),
        rtt_s=rng.choice((0.0, 0.02, 0.5)),
        holds=rng.choice((None, frozenset(rng.sample(range(60), rng.randint(0, 60))))),
        garbage=rng.random() < 0.2,
        gone_at=rng.choice((None, None, rng.uniform(0.01, 30))),
        stuck_at=rng.choice((None, None, rng.uniform(0.01, 30))),
        slow_from=rng.choice((None, None, rng.uniform(0, 30))),
    )


@pytest.mark.parametrize("seed", range(20))
def test_with_one_good_source_every_chunk_arrives_once(seed: int) -> None:
    for number in range(20):
        rng = random.Random(f"{seed}/{number}")
        chunks = rng.randint(1, 60)
        swarm = {name: draw(rng) for name in "abcdef"[: rng.randint(0, 6)]}
        outcome = run(swarm | {"good": Source(math.exp(rng.uniform(-2, 4)))}, chunks)
        assert outcome.done, number
        assert sorted(outcome.arrived) == list(range(chunks)), number
        assert all(most <= IN_FLIGHT_MAX for most in outcome.open_max.values())
        full = [name for name in outcome.asked if name == "good" or swarm[name].holds is None]
        assert all(outcome.asked[name] <= chunks for name in full), number


@pytest.mark.parametrize("seed", range(20))
def test_honest_sources_together_are_nearly_as_fast_as_their_links(
    seed: int,
) -> None:
    for number in range(10):
        rng = random.Random(f"{seed}/{number}")
        chunks = rng.randint(1, 80)
        rates = [math.exp(rng.uniform(-3, 4)) for _ in range(rng.randint(1, 6))]
        sources = {str(n): Source(rate, rng.uniform(0, 0.3)) for n, rate in enumerate(rates)}
        outcome = run(sources, chunks)
        assert outcome.done, number
        bound_s = 1.1 * chunks / sum(rates) + 4 / max(rates) + PATIENCE_UNKNOWN_S + 1.0
        assert outcome.seconds <= bound_s, number


def test_peers_that_start_together_fetch_from_each_other() -> None:
    alone, crowd = Crowd(1, 64).run(), Crowd(4, 64).run()
    assert all(len(held) == 64 for held in crowd.held)
    assert crowd.sent.total() <= 1.05 * 4 * 64
    assert crowd.sent[SEED] < crowd.sent.total() / 2
    assert crowd.now < 2 * alone.now
    assert crowd.misses.total() < 20 * 4 * crowd.now


def test_joiners_soon_give_up_chunks_that_nobody_has() -> None:
    crowd = Crowd(4, 64, lost=frozenset({7, 8})).run()
    whole = Crowd(4, 64).run()
    assert [len(held) for held in crowd.held] == [62] * 5
    assert len(crowd.ended_at) == 4
    assert crowd.now < whole.now + 1


def test_joiners_give_up_soon_after_their_only_seed_has_left() -> None:
    """A joiner that the user restarts continues with the chunks it has."""
    crowd = Crowd(4, 64, seed_ends_at=10.0).run()
    assert len(crowd.ended_at) == 4
    assert crowd.now < 12

"""The lookups of one peer's DNS names share a budget of thread time."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from p2ptrain.net.lookup_time import AT_ONCE_MAX, NAMES_S_MAX, PAID_BACK_PER_S, LookupTime

from .conftest import identity

SLOW, SOUND = identity(1).peer, identity(2).peer


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def time(clock: Clock) -> LookupTime:
    return LookupTime(clock)


def look_up(time: LookupTime, clock: Clock, took_s: float) -> bool:
    """Simulate a lookup of one of the slow peer's names. Return whether it was allowed."""
    with time.spent_by(SLOW) as allowed:
        clock.now_s += took_s if allowed else 0.0
    return allowed


def test_names_of_one_peer_share_a_budget_that_refills_slowly(
    time: LookupTime, clock: Clock
) -> None:
    assert [look_up(time, clock, 5.0) for _ in range(4)] == [True, True, False, False]
    assert not time.is_left(SLOW)
    assert time.is_left(SOUND)
    with time.spent_by(SOUND) as allowed:
        assert allowed
    used_s = 2 * 5.0 - 5.0 * PAID_BACK_PER_S
    clock.now_s += (used_s - NAMES_S_MAX) / PAID_BACK_PER_S - 0.001
    assert not time.is_left(SLOW)
    clock.now_s += 0.002
    assert look_up(time, clock, 0.0)


def test_running_lookups_count_against_the_budget(time: LookupTime, clock: Clock) -> None:
    with ExitStack() as hanging:
        for _ in range(AT_ONCE_MAX):
            assert hanging.enter_context(time.spent_by(SLOW))
        assert not time.is_left(SLOW), "two lookups are running, which is the maximum"
    assert time.is_left(SLOW)
    with time.spent_by(SLOW) as allowed:
        assert allowed
        clock.now_s += NAMES_S_MAX - 0.001
        assert time.is_left(SLOW)
        clock.now_s += 0.002
        assert not time.is_left(SLOW), "the running lookup has used the whole budget"


def test_fast_lookups_hardly_use_the_budget(time: LookupTime, clock: Clock) -> None:
    for _ in range(1000):
        assert look_up(time, clock, 0.02)
        clock.now_s += 4.0


def test_peers_with_a_full_budget_are_forgotten(time: LookupTime, clock: Clock) -> None:
    for number in range(1000):
        with time.spent_by(identity(number + 10).peer):
            clock.now_s += 1.0
    assert len(time) <= 1 + 1.0 / PAID_BACK_PER_S

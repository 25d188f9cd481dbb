"""Each state of a node has a phrase for users; durations, rates and sizes have suitable units."""

from __future__ import annotations

import typing

import pytest

from p2ptrain.observe import states
from p2ptrain.observe.states import duration, rate, size, words

PHRASES: list[tuple[states.State, str]] = [
    (states.Starting(), "starting"),
    (states.Checking(), "checking"),
    (states.Connecting(), "connecting"),
    (states.AwaitingAnswer(), "awaiting your answer"),
    (states.AwaitingApproval(), "awaiting approval"),
    (states.FetchingSnapshot(41, 100, 360), "fetching snapshot (41 %, 6 min)"),
    (states.FetchingSnapshot(41, 100), "fetching snapshot (41 %)"),
    (states.FetchingSnapshot(0, 0), "fetching snapshot (0 %)"),
    (states.CatchingUp(3), "catching up (3 updates left)"),
    (states.CatchingUp(1), "catching up (1 update left)"),
    (states.Loading(), "loading"),
    (states.StandingBy(), "standing by"),
    (states.StandingBy("outer step 412 runs"), "standing by (outer step 412 runs)"),
    (states.Training(37, 100), "training (inner 37/100)"),
    (states.Exchanging(), "exchanging"),
    (states.Exchanging(5, 14, 26.5e6), "exchanging (part 5/14, 212 Mbit/s)"),
    (states.Serving(), "serving"),
    (states.Paused("you paused it until 22:00"), "paused: you paused it until 22:00"),
    (states.Leaving(), "leaving"),
    (states.Isolated("2 of 5 members"), "isolated: 2 of 5 members"),
    (states.Stopped("the loss no longer falls"), "stopped: the loss no longer falls"),
]


@pytest.mark.parametrize(("state", "phrase"), PHRASES)
def test_state_has_its_phrase(state: states.State, phrase: str) -> None:
    assert words(state) == phrase


def test_every_state_is_tested_and_its_phrase_begins_with_its_name() -> None:
    shown = {type(state) for state, _ in PHRASES}
    assert shown == set(typing.get_args(states.State))
    assert all(words(state).startswith(state.name) for state, _ in PHRASES)


def test_states_have_distinct_names() -> None:
    names = [state.name for state in typing.get_args(states.State)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (40.4, "40 s"),
        (99, "99 s"),
        (100, "2 min"),
        (3600, "60 min"),
        (7500, "2 h 05 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_duration_is_shown_in_suitable_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(26.5e6, "212 Mbit/s"), (1e6, "8 Mbit/s"), (1.3e9, "10.4 Gbit/s"), (5e3, "40 kbit/s")],
)
def test_rate_is_shown_in_bits_per_second(bytes_per_s: float, text: str) -> None:
    assert rate(bytes_per_s) == text


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 bytes"), (4_200_000, "4.2 MB"), (2e9, "2.0 GB")]
)
def test_size_uses_decimal_units(count: float, text: str) -> None:
    assert size(count) == text

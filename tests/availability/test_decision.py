"""A node trains unless one of its owner's wishes forbids it now, and it names the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.availability.decision import (
    Facts,
    GpuWatch,
    Pause,
    changes_at,
    clock,
    decide,
    next_midnight,
)
from p2ptrain.availability.usage import Usage
from p2ptrain.availability.windows import parse_schedule
from p2ptrain.availability.wishes import Limits, Wishes
from p2ptrain.errors import ConfigError
from tests.availability.test_windows import BERLIN, at

NOON = at("2026-11-26 12:00")
NIGHT = parse_schedule("22:00-07:00")
EVERYTHING = Wishes(
    paused=True,
    paused_until=at("2026-11-26 14:30"),
    schedule=NIGHT,
    on_battery=True,
    when_gpu_busy=True,
    when_in_use=True,
    limits=Limits(daily_bytes=50 * 10**9),
)
BUSY = Facts(NOON, True, "blender", bytes_today=51 * 10**9, used_at=NOON - 599)


def test_reasons_have_an_order() -> None:
    """Each reason is shown if none of the earlier ones holds."""
    wishes, reasons = EVERYTHING, []
    for changes in (
        {"paused": False},
        {"schedule": None},
        {"limits": Limits()},
        {"on_battery": False},
        {"when_gpu_busy": False},
        {"when_in_use": False},
    ):
        pause = decide(wishes, BUSY, BERLIN)
        assert pause is not None
        reasons.append((pause.kind, pause.reason, pause.until))
        wishes = replace(wishes, **changes)
    assert decide(wishes, BUSY, BERLIN) is None
    assert reasons == [
        ("owner", "you paused it until 14:30", at("2026-11-26 14:30")),
        (
            "schedule",
            "outside your schedule 22:00-07:00; training resumes at 22:00",
            at("2026-11-26 22:00"),
        ),
        (
            "daily",
            "your limit of 50 GB a day is used up; training resumes at 00:00",
            at("2026-11-27 00:00"),
        ),
        ("battery", "this machine runs on battery; training resumes on mains power", None),
        ("gpu", "the GPU is used by blender; training resumes when it is free", None),
        (
            "user",
            "somebody uses this machine; training resumes after 10 min without input",
            None,
        ),
    ]


def test_pause_without_an_end_lasts_until_the_owner_ends_it() -> None:
    wishes = Wishes(paused=True)
    assert decide(wishes, Facts(NOON)) == Pause("owner", "you paused it, without an end", None)
    assert decide(replace(wishes, paused_until=NOON), Facts(NOON)) is None


def test_times_on_other_days_name_the_day() -> None:
    times = ("2026-11-26 13:00", "2026-11-27 11:00", "2026-11-27 13:00", "2026-12-24 08:00")
    told = [clock(at(time), NOON, BERLIN) for time in times]
    assert told == ["13:00", "11:00", "fri 13:00", "2026-12-24 08:00"]


def test_day_of_the_clock_change_ends_at_its_own_midnight() -> None:
    assert next_midnight(at("2026-03-29 01:00"), BERLIN) == at("2026-03-30 00:00")
    assert at("2026-03-30 00:00") - at("2026-03-29 00:00") == 23 * 3600


moments = st.integers(1_700_000_000, 1_800_000_000).map(float)
wishes = st.builds(
    Wishes,
    paused=st.booleans(),
    paused_until=st.none() | moments,
    schedule=st.none() | st.sampled_from([NIGHT, parse_schedule("sat-sun 10:00-18:00")]),
    limits=st.builds(Limits, daily_bytes=st.none() | st.just(10**9)),
)


@given(wishes, moments, st.integers(0, 2 * 10**9), st.floats(0, 1))
def test_decision_holds_until_the_time_at_which_it_can_change(
    wished: Wishes, now: float, used: int, part: float
) -> None:
    pause = decide(wished, Facts(now, bytes_today=used), BERLIN)
    until = changes_at(wished, pause, now, BERLIN)
    later = now + part * ((until or now + 86_400) - now) * 0.999
    again = decide(wished, Facts(later, bytes_today=used), BERLIN)
    assert (again and again.kind) == (pause and pause.kind)


def test_other_use_of_the_gpu_counts_only_if_it_lasts() -> None:
    watch = GpuWatch(busy_s=10.0, idle_s=60.0)
    seen = [
        watch.note(name, now)
        for name, now in (
            ("blender", 0.0),
            ("", 5.0),
            ("blender", 6.0),
            ("blender", 15.0),
            ("blender", 16.0),
            ("game", 20.0),
            ("", 21.0),
            ("", 80.0),
            ("", 81.0),
        )
    ]
    assert seen == ["", "", "", "", "blender", "game", "game", "game", ""]


def test_wishes_survive_in_a_file_except_a_pause_without_an_end() -> None:
    assert Wishes.from_bytes(EVERYTHING.to_bytes()) == EVERYTHING
    endless = replace(EVERYTHING, paused_until=None)
    assert Wishes.from_bytes(endless.to_bytes()) == replace(endless, paused=False)
    assert Wishes.from_bytes(b'{"schema": 1, "later": 2, "limits": {"later": 3}}') == Wishes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"paused_until": "noon", "paused": true}',
        b'{"paused_until": true}',
        b'{"paused_until": -1}',
        b'{"schedule": "always"}',
        b'{"schedule": 5}',
        b'{"limits": 5}',
        b'{"limits": {"up_bytes_per_s": 1}}',
        b'{"limits": {"threads": "four"}}',
        b'{"limits": {"daily_bytes": 1e9}}',
        b'{"limits": {"gpu_bytes": true}}',
        b"[" * 10_000,
    ],
)
def test_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError):
        Wishes.from_bytes(data)


def test_usage_begins_anew_each_day() -> None:
    usage = Usage().after(10, 20, "2026-11-26").after(1, 2, "2026-11-26")
    assert (usage, usage.total) == (Usage("2026-11-26", 11, 22), 33)
    assert usage.after(5, 0, "2026-11-27") == Usage("2026-11-27", 5, 0)
    assert Usage.from_bytes(usage.to_bytes()) == usage
    damaged = (b"", b"{}", b'{"day": 1, "up": 1, "down": 1}', b'{"day": "", "up": "", "down": 1}')
    assert {Usage.from_bytes(data) for data in damaged} == {Usage()}

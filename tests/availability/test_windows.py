"""A schedule is open in its windows of local time, and knows when that changes."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.availability.windows import DAY_MIN, Schedule, Window, moment, parse_schedule
from p2ptrain.errors import ConfigError

BERLIN = ZoneInfo("Europe/Berlin")
"""Clocks go from 02:00 to 03:00 on 2026-03-29, and from 03:00 to 02:00 on 2026-10-25."""

ZONES = tuple(
    ZoneInfo(name)
    for name in (
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Africa/Casablanca",
    )
)


def at(text: str, *, fold: int = 0, tz: ZoneInfo = BERLIN) -> float:
    """Return the Unix seconds of a local time such as "2026-03-28 22:00"."""
    return datetime.fromisoformat(text).replace(tzinfo=tz, fold=fold).timestamp()


def shown(seconds: float | None, tz: ZoneInfo = BERLIN) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, tz):%Y-%m-%d %H:%M}"


NIGHT = parse_schedule("22:00-07:00")


def test_window_over_midnight_belongs_to_two_days() -> None:
    times = ("21:59", "22:00", "23:59", "00:00", "06:59", "07:00", "12:00")
    opened = [NIGHT.is_open(at(f"2026-11-26 {time}"), BERLIN) for time in times]
    assert opened == [False, True, True, True, True, False, False]
    assert shown(NIGHT.next_change(at("2026-11-26 12:00"), BERLIN)) == "2026-11-26 22:00"
    assert shown(NIGHT.next_change(at("2026-11-26 23:00"), BERLIN)) == "2026-11-27 07:00"


def test_days_name_the_day_on_which_a_window_begins() -> None:
    schedule = parse_schedule("fri 22:00-07:00")
    assert schedule.is_open(at("2026-11-28 06:00"), BERLIN)  # Saturday morning
    assert not schedule.is_open(at("2026-11-27 06:00"), BERLIN)  # Friday morning
    assert shown(schedule.next_change(at("2026-11-28 08:00"), BERLIN)) == "2026-12-04 22:00"


def test_windows_that_touch_are_one() -> None:
    schedule = parse_schedule("mon-fri 18:00-08:00, sat-sun 00:00-24:00")
    friday = at("2026-11-27 20:00")
    assert shown(schedule.next_change(friday, BERLIN)) == "2026-11-30 00:00"


def test_schedule_for_every_hour_never_changes() -> None:
    schedule = parse_schedule("00:00-24:00")
    now = at("2026-11-27 20:00")
    assert schedule.is_open(now, BERLIN)
    assert schedule.next_change(now, BERLIN) is None


def test_length_of_a_night_follows_the_change_of_clocks() -> None:
    for begin, hours in (("2026-03-28 22:00", 8), ("2026-10-24 22:00", 10)):
        opens = at(begin)
        closes = NIGHT.next_change(opens, BERLIN)
        assert closes == opens + 3600 * hours


def test_skipped_time_stands_for_the_moment_of_the_skip() -> None:
    schedule = parse_schedule("02:30-06:00")
    jump = at("2026-03-29 03:00")
    assert schedule.next_change(at("2026-03-29 01:00"), BERLIN) == jump
    assert not schedule.is_open(jump - 1, BERLIN)
    assert schedule.is_open(jump, BERLIN)


def test_repeated_hour_extends_a_window_that_contains_it() -> None:
    schedule = parse_schedule("02:30-03:30")
    opens = at("2026-10-25 02:30")
    assert schedule.next_change(opens - 1, BERLIN) == opens
    assert schedule.is_open(at("2026-10-25 02:15", fold=1), BERLIN)
    assert schedule.next_change(opens, BERLIN) == opens + 2 * 3600


@pytest.mark.parametrize(
    "text",
    [
        "",
        "22:00",
        "22-07",
        "25:00-07:00",
        "22:60-07:00",
        "24:00-07:00",
        "22:00-24:30",
        "08:00-08:00",
        "xyz 22:00-07:00",
        "mon-xyz 22:00-07:00",
        "22:00-07:00,",
        ",".join(["22:00-07:00"] * 33),
        "22:00-07:00\x1b",
    ],
)
def test_malformed_schedule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_schedule(text)
    assert caught.value.code == "SCHEDULE"


def test_text_is_kept_in_one_form() -> None:
    schedule = parse_schedule("  MON-fri   18:00 - 08:00 ,sun 9:00-10:00")
    assert schedule.text == "mon-fri 18:00 - 08:00, sun 9:00-10:00"
    assert parse_schedule(schedule.text) == schedule


windows = st.builds(
    Window,
    st.frozensets(st.integers(0, 6), min_size=1),
    st.integers(0, DAY_MIN - 1),
    st.integers(1, DAY_MIN),
).filter(lambda it: it.begin != it.end)
schedules = st.lists(windows, min_size=1, max_size=4).map(lambda it: Schedule("", tuple(it)))
moments = st.integers(1_700_000_000, 1_800_000_000).map(float)
zones = st.sampled_from(ZONES)


@given(schedules, moments, zones, st.floats(0, 1))
def test_schedule_does_not_change_before_its_next_change(
    schedule: Schedule, now: float, tz: ZoneInfo, part: float
) -> None:
    change, is_open = schedule.next_change(now, tz), schedule.is_open(now, tz)
    if change is None:
        change = now + 6 * 86_400
    else:
        assert change > now
        assert schedule.is_open(change, tz) != is_open
    assert schedule.is_open(now + part * (change - now) * 0.999, tz) == is_open


@given(st.integers(0, 2 * DAY_MIN), moments, zones)
def test_times_of_a_day_are_in_order(minute: int, now: float, tz: ZoneInfo) -> None:
    """A moment is a time that the clock shows, or else the moment at which the clock skips it."""
    day = datetime.fromtimestamp(now, tz).date()
    here, later = moment(day, minute, tz), moment(day, minute + 1, tz)
    assert here <= later
    local = datetime.fromtimestamp(here, tz)
    shown_minute = 60 * local.hour + local.minute
    if shown_minute != minute % DAY_MIN:
        before = datetime.fromtimestamp(here - 1, tz)
        assert before.utcoffset() != local.utcoffset()

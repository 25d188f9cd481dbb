"""A weekly schedule in local time, such as "22:00-07:00" or "mon-fri 18:00-08:00, sun 10:00-24:00".

A window is an interval between two moments, not a condition on the clock on the wall. So it has a
defined length on days on which the clock changes: a window from 01:30 to 02:30 is longer by an hour
when the hour from 02:00 is repeated. A time that the clock skips stands for the moment of the skip.
A day names the day on which a window begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

from p2ptrain.errors import ConfigError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MIN = 24 * 60
"""Minutes of a day, which is also the end of a window that lasts until midnight."""

WINDOWS_MAX = 32
"""Maximum number of windows: more than four for each day of the week."""

AHEAD_DAYS = 15
"""Days to search for the next change. Every schedule opens within a week, except that a window can
fall into an hour that the clock skips, and then opens a week later."""

_WINDOW = re.compile(
    r"(?:(?P<days>[a-z]{3}(?:-[a-z]{3})?)\s+)?"
    r"(?P<h1>\d{1,2}):(?P<m1>\d{2})\s*-\s*(?P<h2>\d{1,2}):(?P<m2>\d{2})"
)


@dataclass(frozen=True, slots=True)
class Window:
    """From minute `begin` of each of `days` (0 is Monday) to minute `end`, which is on the next day
    if it is not later than `begin`."""

    days: frozenset[int]
    begin: int
    end: int

    def __post_init__(self) -> None:
        assert self.days
        assert 0 <= self.begin < DAY_MIN
        assert 0 < self.end <= DAY_MIN


@dataclass(frozen=True, slots=True)
class Schedule:
    """The windows in which a node trains. `text` is the owner's own text."""

    text: str
    windows: tuple[Window, ...]

    def is_open(self, now: float, tz: tzinfo | None = None) -> bool:
        """Return whether `now`, in Unix seconds, is inside a window. `tz` is the time zone; None
        stands for this machine's."""
        today = datetime.fromtimestamp(now, tz).date()
        return any(begin <= now < end for begin, end in self._intervals(today, 0, tz))

    def next_change(self, now: float, tz: tzinfo | None = None) -> float | None:
        """Return when `is_open` next changes, in Unix seconds; None if it never does."""
        today, is_open = datetime.fromtimestamp(now, tz).date(), self.is_open(now, tz)
        intervals = sorted(self._intervals(today, AHEAD_DAYS, tz))
        if not is_open:
            return min((begin for begin, end in intervals if now < begin < end), default=None)
        until = now
        for begin, end in intervals:
            if begin > until:
                break
            until = max(until, end)
        # A window that touches the next one, for a week, never closes.
        return until if until < now + 7 * 86_400 else None

    def _intervals(
        self, today: date, ahead_days: int, tz: tzinfo | None
    ) -> Iterator[tuple[float, float]]:
        """Yield the intervals that begin yesterday or on a day up to `ahead_days` after today."""
        for offset in range(-1, ahead_days + 1):
            day = today + timedelta(days=offset)
            for window in self.windows:
                if day.weekday() in window.days:
                    over = DAY_MIN if window.end <= window.begin else 0
                    yield moment(day, window.begin, tz), moment(day, window.end + over, tz)


def moment(day: date, minute: int, tz: tzinfo | None) -> float:
    """Return the Unix seconds of the local time `minute` minutes after midnight of `day`. Of a time
    that occurs twice, take the first; a time that is skipped stands for the moment of the skip."""
    wall = datetime(day.year, day.month, day.day, tzinfo=tz) + timedelta(minutes=minute)
    first, second = (wall.replace(fold=fold).timestamp() for fold in (0, 1))
    if first <= second:
        return first
    # The time is skipped. The clock changes between the two readings of it.
    before, after = second, first
    while after - before > 1:
        middle = (before + after) / 2
        if _offset_s(middle, tz) == _offset_s(before, tz):
            before = middle
        else:
            after = middle
    return float(round(after))


def _offset_s(now: float, tz: tzinfo | None) -> float:
    local = datetime.fromtimestamp(now, tz).replace(tzinfo=None)
    return (local - datetime.fromtimestamp(now, UTC).replace(tzinfo=None)).total_seconds()


def parse_schedule(text: str) -> Schedule:
    """Return the schedule in `text`: windows such as "22:00-07:00" or "sat-sun 10:00-24:00",
    separated by commas. Raises ConfigError, with code SCHEDULE."""
    said = " ".join(text.lower().split())
    parts = [part.strip() for part in said.split(",")]
    if len(parts) > WINDOWS_MAX:
        raise _fault(text, f"it has more than {WINDOWS_MAX} windows")
    return Schedule(", ".join(parts), tuple(_window(text, part) for part in parts))


def _window(text: str, part: str) -> Window:
    match = _WINDOW.fullmatch(part)
    if match is None:
        raise _fault(text, f"{part[:40]!r} is not a window")
    begin = _minute(text, match["h1"], match["m1"])
    end = _minute(text, match["h2"], match["m2"])
    if begin in (DAY_MIN, end):
        raise _fault(text, f"{part!r} is empty")
    return Window(_days(text, match["days"]), begin, end or DAY_MIN)


def _minute(text: str, hours: str, minutes: str) -> int:
    minute = 60 * int(hours) + int(minutes)
    if int(minutes) > 59 or minute > DAY_MIN:
        raise _fault(text, f"{hours}:{minutes} is not a time of day")
    return minute


def _days(text: str, said: str | None) -> frozenset[int]:
    if said is None:
        return frozenset(range(7))
    first, _, last = said.partition("-")
    if first not in DAYS or (last or first) not in DAYS:
        raise _fault(text, f"{said!r} does not name days of the week")
    begin, end = DAYS.index(first), DAYS.index(last or first)
    return frozenset((begin + offset) % 7 for offset in range((end - begin) % 7 + 1))


def _fault(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"{text[:80]!r} is not a schedule: {why}",
        code="SCHEDULE",
        do='write windows such as "22:00-07:00" or "mon-fri 18:00-08:00, sat-sun 00:00-24:00"',
    )

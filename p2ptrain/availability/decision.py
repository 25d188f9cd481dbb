"""Decide whether a node may train now, from its owner's wishes and the facts about this machine.

The reasons are checked in a fixed order, and the first one is shown: the owner's own pause, the
schedule, the day's bytes, the battery, the GPU, and somebody who uses the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from p2ptrain.availability.activity import QUIET_S, is_in_use
from p2ptrain.availability.windows import DAYS, moment
from p2ptrain.availability.wishes import Wishes

BUSY_S = 10.0
"""Seconds for which another program must use the GPU before the node pauses: a program that draws
one image is no reason to stop the trainer."""

IDLE_S = 60.0
"""Seconds without use of the GPU by other programs before the node trains again: a start of the
trainer takes longer than a short pause in a game."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a machine at `now`, in Unix seconds. `gpu_used_by` names the other
    programs that use the GPU; empty if there are none or it is not known. `bytes_today` are the
    bytes of bulk data since midnight. `used_at` is when somebody last used the machine, in Unix
    seconds; None if that is not known."""

    now: float
    on_battery: bool = False
    gpu_used_by: str = ""
    bytes_today: int = 0
    used_at: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Why the node must not train now, in words, and when that ends, in Unix seconds; None if the
    end is not known."""

    kind: str
    reason: str
    until: float | None = None


def decide(wishes: Wishes, facts: Facts, tz: tzinfo | None = None) -> Pause | None:
    """Return why the node must not train at `facts.now`; None if it may. `tz` is the time zone;
    None stands for this machine's."""
    now = facts.now
    if is_paused(wishes, now):
        until = wishes.paused_until
        ends = ", without an end" if until is None else f" until {clock(until, now, tz)}"
        return Pause("owner", f"you paused it{ends}", until)
    schedule, daily = wishes.schedule, wishes.limits.daily_bytes
    if schedule is not None and not schedule.is_open(now, tz):
        opens = schedule.next_change(now, tz)
        again = "" if opens is None else f"; training resumes at {clock(opens, now, tz)}"
        return Pause("schedule", f"outside your schedule {schedule.text}{again}", opens)
    if daily is not None and facts.bytes_today >= daily:
        midnight = next_midnight(now, tz)
        again = f"training resumes at {clock(midnight, now, tz)}"
        return Pause(
            "daily", f"your limit of {daily / 1e9:.3g} GB a day is used up; {again}", midnight
        )
    if wishes.on_battery and facts.on_battery:
        return Pause("battery", "this machine runs on battery; training resumes on mains power")
    if wishes.when_gpu_busy and facts.gpu_used_by:
        words = f"the GPU is used by {facts.gpu_used_by}; training resumes when it is free"
        return Pause("gpu", words)
    if wishes.when_in_use and is_in_use(facts.used_at, now):
        again = f"training resumes after {QUIET_S / 60:.0f} min without input"
        return Pause("user", f"somebody uses this machine; {again}")
    return None


def is_paused(wishes: Wishes, now: float) -> bool:
    """Return whether the owner's own pause holds at `now`."""
    return wishes.paused and (wishes.paused_until is None or now < wishes.paused_until)


def changes_at(
    wishes: Wishes, pause: Pause | None, now: float, tz: tzinfo | None = None
) -> float | None:
    """Return the time, in Unix seconds, at which `decide` can next decide otherwise with the same
    facts; None if there is none."""
    ends = None if pause is None else pause.until
    owners = pause is not None and pause.kind == "owner"
    by_hours = None if owners or not wishes.schedule else wishes.schedule.next_change(now, tz)
    return min((at for at in (ends, by_hours) if at is not None), default=None)


def next_midnight(now: float, tz: tzinfo | None = None) -> float:
    """Return the next midnight of local time, in Unix seconds."""
    return moment(datetime.fromtimestamp(now, tz).date() + timedelta(days=1), 0, tz)


def clock(at: float, now: float, tz: tzinfo | None = None) -> str:
    """Return a time for users: "22:00", or "sat 22:00" and "2026-12-24 22:00" on later days."""
    when, today = datetime.fromtimestamp(at, tz), datetime.fromtimestamp(now, tz)
    days = (when.date() - today.date()).days
    if days == 0 or (days == 1 and when.time() <= today.time()):
        return f"{when:%H:%M}"
    return f"{DAYS[when.weekday()]} {when:%H:%M}" if 0 < days < 7 else f"{when:%Y-%m-%d %H:%M}"


@dataclass(slots=True)
class GpuWatch:
    """Smooths what is seen of the GPU, so that the trainer is not stopped for a moment's use."""

    busy_s: float = BUSY_S
    idle_s: float = IDLE_S
    used_by: str = ""
    """The programs because of which the node pauses; empty if it need not."""
    _seen: tuple[bool, float] | None = None

    def note(self, used_by: str, now: float) -> str:
        """Note who uses the GPU at the monotonic time `now`. Return `used_by` after smoothing."""
        busy = bool(used_by)
        if self._seen is None or self._seen[0] != busy:
            self._seen = (busy, now)
        lasts_s = now - self._seen[1]
        if busy and (self.used_by or lasts_s >= self.busy_s):
            self.used_by = used_by
        elif not busy and lasts_s >= self.idle_s:
            self.used_by = ""
        return self.used_by

"""Pauses for writers whose work can wait, while every core is busy with other work.

A lower priority (see `lanes`) is not enough beside a trainer that has all cores: whenever the
trainer waits for anything, the threads of a snapshot run. They took 3.5 % of two cores, and the
inner steps took 4 % longer. So the writer pauses between two chunks until its share is a hundredth
of one core. If a core is idle, as on a machine whose trainer uses a GPU, the writer does not pause.

The operating system reports idle time for the whole machine. In a container that may use less of
the machine, a writer may pause too seldom.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

SHARE = 0.01
"""Share of one core. A trainer's threads wait for each other, so what one of them loses, all lose.
With this share, writing 4 GB takes seven minutes if all cores are busy."""

FREE_S = 0.03
"""Processor seconds before the first pause: a snapshot of 30 MB needs no pause at all."""

LOOK_S = 0.2
"""Seconds between two looks at the idle time, which the system counts in hundredths of a second."""

IDLE_CORES = 0.5
"""If fewer cores than this were idle, the writer takes time from somebody."""

REST_S_MIN = 0.001
"""Shorter pauses are postponed to the next time: sleeping is not that exact."""

REST_S_MAX = 2.0
"""Longest single pause.
A pause ends within this time when a core becomes idle, as at the end of the inner steps."""

Result = TypeVar("Result")


def _idle_s() -> float:
    """Return the idle seconds of all cores together since the machine's start."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


class IdleThrottle:
    """The accounting that one blob's writer and its lanes share. Tests pass their own clocks."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        idle_s: Callable[[], float] = _idle_s,
        used_s: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._now, self._idle_s, self._used_s = now, idle_s, used_s
        self._over = threading.Event()
        self._sleep = sleep or self._over.wait
        self._counting = threading.Lock()
        self._looked_at, self._idle_then = now(), idle_s()
        self._all_busy = False
        # The time since when all cores have been busy, and the processor seconds used since
        # then.
        self._since, self._spent_s = self._looked_at, 0.0

    def end(self) -> None:
        """End all pauses, present and future. Call from any thread."""
        self._over.set()

    def run_counted(self, work: Callable[[], Result]) -> Result:
        """Do `work`, and count its processor time. Call from any thread."""
        begun = self._used_s()
        try:
            return work()
        finally:
            spent = self._used_s() - begun
            with self._counting:
                self._spent_s += spent

    def rest(self) -> None:
        """Pause until it is time for the next chunk."""
        while not self._over.is_set() and (seconds := self._rest_s()) >= REST_S_MIN:
            self._sleep(min(seconds, REST_S_MAX))

    def _rest_s(self) -> float:
        now = self._measure()
        with self._counting:
            rest_s = (self._spent_s - FREE_S) / SHARE - (now - self._since)
            return rest_s if self._all_busy else 0.0

    def _measure(self) -> float:
        now = self._now()
        if now >= self._looked_at + LOOK_S:
            idle_s = self._idle_s()
            idle_cores = (idle_s - self._idle_then) / (now - self._looked_at)
            self._looked_at, self._idle_then = now, idle_s
            self._judge(idle_cores < IDLE_CORES, now)
        return now

    def _judge(self, all_busy: bool, now: float) -> None:
        if not all_busy:
            with self._counting:
                self._since, self._spent_s = now, 0.0
        self._all_busy = all_busy

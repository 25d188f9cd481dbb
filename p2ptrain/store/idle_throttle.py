"""Rests for whoever writes what can wait, where every core has something else to do.

To stand back (see `lanes`) is not enough beside a trainer that has all cores: each time that it
waits for anything, the threads of a snapshot are there. They took 3.5 % of two cores, and its inner
steps took 4 % longer. So the writer rests between two chunks until what it has used is a hundredth
of one core. Where a core is idle, as on a machine whose trainer is on a GPU, it does not rest.

Idle is what the operating system says of the whole machine: in a container that may use less of it,
a writer may rest too seldom.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

SHARE = 0.01
"""Of one core. Threads of a trainer wait for each other, so that what is taken from one of them is
taken from all: with this 4 GB take seven minutes of cores that are all busy."""

FREE_S = 0.03
"""Before the first rest: a snapshot of 30 MB is over before anybody notices."""

LOOK_S = 0.2
"""The system counts in hundredths of a second: about shorter times it says nothing."""

IDLE_CORES = 0.5
"""If less than this was idle, what a writer takes is taken from somebody."""

REST_S_MIN = 0.001
"""Shorter ones are left to the next time: no sleep is that exact."""

REST_S_MAX = 2.0
"""Within this a rest ends when a core becomes idle, as at the end of the inner steps."""

Result = TypeVar("Result")


def _idle_s() -> float:
    """Seconds of all cores together in which they had nothing to do, since the machine's start."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


class Leisure:
    """What one blob's writer and its lanes share. The clocks are arguments for tests."""

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
        # Since when the cores are all busy, and what was used since.
        self._since, self._spent_s = self._looked_at, 0.0

    def end(self) -> None:
        """There is no time left: nobody rests from now on, nor any more. From any thread."""
        self._over.set()

    def count(self, work: Callable[[], Result]) -> Result:
        """Do `work`, of which the processor time counts; in any thread."""
        begun = self._used_s()
        try:
            return work()
        finally:
            spent = self._used_s() - begun
            with self._counting:
                self._spent_s += spent

    def rest(self) -> None:
        """Return when it is time for the next chunk."""
        while not self._over.is_set() and (seconds := self._rest_s()) >= REST_S_MIN:
            self._sleep(min(seconds, REST_S_MAX))

    def _rest_s(self) -> float:
        now = self._look()
        with self._counting:
            rest_s = (self._spent_s - FREE_S) / SHARE - (now - self._since)
            return rest_s if self._all_busy else 0.0

    def _look(self) -> float:
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

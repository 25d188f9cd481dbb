"""Pause background writers while all cores are busy with other work.

A lower priority (see `lanes`) is not enough while a trainer uses all cores: whenever the trainer
waits, the threads of a snapshot run. They took 3.5 % of two cores, and inner steps took 4 % longer.
So the writer pauses between chunks until its share is a hundredth of one core. If a core is idle,
for example because the trainer uses a GPU, the writer does not pause.

The operating system reports idle time for the whole machine. In a container with fewer cores than
the machine, a writer may pause too rarely.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

SHARE = 0.01
"""Share of one core that a writer gets while all cores are busy. A trainer's threads wait for each
other, so time taken from one of them delays all of them. With this share, writing 4 GB takes seven
minutes if all cores are busy."""

FREE_S = 0.03
"""CPU seconds before the first pause. Snapshots of up to 30 MB are written without a pause."""

LOOK_S = 0.2
"""Seconds between two readings of the idle time, which has a resolution of 10 ms."""

IDLE_CORES = 0.5
"""If fewer cores than this are idle, the writer takes CPU time from other work."""

REST_S_MIN = 0.001
"""Minimum length of a pause. A shorter pause is added to the next one, because sleeping is not that
precise."""

REST_S_MAX = 2.0
"""Maximum length of one sleep. When a core becomes idle, such as after the inner steps, the pause
ends within this time."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def _idle_s() -> float:
    """Return the idle seconds of all cores together since boot."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


class IdleThrottle:
    """Counts the CPU time of one blob's writer and its lanes (the threads that write its chunks),
    and makes the writer pause. Tests pass their own clocks.
    """

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
        # When all cores became busy, and the CPU seconds used since then.
        self._since, self._spent_s = self._looked_at, 0.0

    def end(self) -> None:
        """End current and future pauses. Call from any thread."""
        self._over.set()

    def counted(self, work: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
        """Return a function that calls `work` and counts its CPU time. Any thread may call it."""

        def run(argument: Argument) -> Result:
            begun = self._used_s()
            try:
                return work(argument)
            finally:
                spent = self._used_s() - begun
                with self._counting:
                    self._spent_s += spent

        return run

    def rest(self) -> None:
        """Pause until it is time to write the next chunk."""
        while not self._over.is_set() and (seconds := self._rest_s()) >= REST_S_MIN:
            self._sleep(min(seconds, REST_S_MAX))

    def _rest_s(self) -> float:
        now = self._now()
        if now >= self._looked_at + LOOK_S:
            self._look(now)
        with self._counting:
            rest_s = (self._spent_s - FREE_S) / SHARE - (now - self._since)
            return rest_s if self._all_busy else 0.0

    def _look(self, now: float) -> None:
        """Find out whether all cores have been busy since the last look."""
        idle_s = self._idle_s()
        idle_cores = (idle_s - self._idle_then) / (now - self._looked_at)
        self._looked_at, self._idle_then = now, idle_s
        self._all_busy = idle_cores < IDLE_CORES
        if not self._all_busy:
            with self._counting:
                self._since, self._spent_s = now, 0.0

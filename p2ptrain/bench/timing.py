"""Measure the time of calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Call = Callable[[], object]


def best_times(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Return the shortest processor time of each call in `rounds` rounds, in seconds.

    The calls take turns, so that a busy machine affects all of them equally. Processor time counts,
    because on a shared machine wall-clock times would also measure the other programs.
    """
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - started)
    return best


def elapsed_s(call: Call) -> float:
    """Return the wall-clock seconds that the call takes."""
    begun = time.monotonic()
    call()
    return time.monotonic() - begun

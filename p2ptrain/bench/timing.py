"""Times of calls that take turns, so that a busy machine wrongs none of them more than another.

Processor time is counted, not the clock's, and each call's best: on a machine that others use too,
all else measures the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Call = Callable[[], object]


def best_times(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Seconds of this process's processor time that each call takes at best in `rounds` turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - started)
    return best

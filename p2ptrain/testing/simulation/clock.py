"""Virtual time: a heap of what happens when. Equal times keep the order in which they were
planned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Action]] = []
        self._count = 0

    def after(self, delay_s: float, action: Action) -> None:
        self.at(self.now + delay_s, action)

    def at(self, time: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._planned, (max(time, self.now), self._count, action))

    def step(self) -> bool:
        """Let the next thing happen. False if nothing is planned any more."""
        if not self._planned:
            return False
        self.now, _, action = heapq.heappop(self._planned)
        action()
        return True

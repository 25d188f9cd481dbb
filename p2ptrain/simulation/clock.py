"""Virtual time: a heap of planned actions. Actions planned for the same time keep their order."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]

AT_ONCE_MAX = 100_000
"""Maximum number of actions at one instant. More actions mean that an action plans itself again
without delay, so that time would stand still for ever."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Action]] = []
        self._count = 0
        self._at_once = 0

    def after(self, delay_s: float, action: Action) -> None:
        assert delay_s >= 0
        self.at(self.now + delay_s, action)

    def at(self, time: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._planned, (max(time, self.now), self._count, action))

    @property
    def stands_still(self) -> bool:
        """Whether actions repeat without end while time does not pass."""
        return self._at_once > AT_ONCE_MAX

    def step(self) -> bool:
        """Run the next action. Return False if no action is planned."""
        if not self._planned:
            return False
        time, _, action = heapq.heappop(self._planned)
        self._at_once = self._at_once + 1 if time == self.now else 0
        self.now = time
        action()
        return True


class NodeClock:
    """A node's own monotonic clock. It can be too fast or too slow, and can jump forward but not
    back. Wall clocks are not simulated, because the ledger does not read them."""

    ROUNDING_S = 1e-9
    """Seconds added to a timer if the two clocks differ, so that rounding does not make it fire too
    early. If a timer fired too early, the node would find that nothing is due, and the timer would
    fire again at the same instant."""

    def __init__(self, world: Clock, rate: float = 1.0) -> None:
        self.rate = rate
        self._world = world
        self._ahead_s = 0.0

    @property
    def now(self) -> float:
        return self._world.now * self.rate + self._ahead_s

    def leap(self, seconds: float) -> None:
        assert seconds >= 0
        self._ahead_s += seconds

    def time_until(self, due: float) -> float:
        """Return the world's seconds until this clock shows `due`."""
        left = due - self.now
        if left <= 0:
            return 0.0
        alike = self.rate == 1.0 and self._ahead_s == 0
        return left if alike else left / self.rate + self.ROUNDING_S

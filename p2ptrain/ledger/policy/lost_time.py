"""Measure the time that a failed attempt costs, in outer steps.

Eight lost seconds do not matter if an outer step takes ten minutes, but are a disaster if it takes
one second. So the more outer steps a failure costs, the longer `blame` remembers it. This is one
node's own measurement; other nodes do not check it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

STEPS_KEPT = 16
"""Number of recent outer steps from which the usual duration is computed."""

STEP_MIN_S = 0.1
"""Minimum usual duration in seconds. It avoids a division by zero."""


@dataclass(slots=True)
class LostTime:
    """Durations in seconds, by this node's clock.

    - `took_s`: how long recent outer steps took, without their failed attempts. It contains only
      steps that this node watched. A node that catches up applies a hundred steps at once, which
      says nothing about their durations.
    - `watched`: whether this node, while at the current outer step, heard that a member is ready
      for it.
    - `stepped_at`: when the last outer step ended, or None.
    - `opened_at`: when the current attempt was opened, or None.
    - `lost_s`: the time that failed attempts of the current step have cost so far.
    """

    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    watched: bool = False
    stepped_at: float | None = None
    opened_at: float | None = None
    lost_s: float = 0.0

    def opened(self, now: float) -> None:
        """Record that an attempt begins."""
        self.opened_at = now

    def failed(self, now: float) -> float:
        """Record that the current attempt was abandoned. Return its duration in outer steps; 0 if
        this node does not know yet how long outer steps take.
        """
        lost_s = 0.0 if self.opened_at is None else now - self.opened_at
        self.opened_at = None
        self.lost_s += lost_s
        return lost_s / max(STEP_MIN_S, median(self.took_s)) if self.took_s else 0.0

    def stepped(self, now: float) -> None:
        """Record that an outer step ended."""
        if self.watched and self.stepped_at is not None:
            self.took_s.append(max(0.0, now - self.stepped_at - self.lost_s))
        self.stepped_at, self.opened_at, self.lost_s, self.watched = now, None, 0.0, False

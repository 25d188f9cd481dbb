"""When a height's round has lasted long enough, and when to say something again.

Both only run while something waits to be decided. Times are the caller's; nothing here reads a
clock.
"""

from __future__ import annotations

from dataclasses import dataclass

RESEND_FIRST_S = 0.5
"""Longer than a round trip around the world (0.3 s), so that a healthy network sees no
repetition.
"""

RESEND_MAX_S = 4.0

ROUND_STRETCH_MAX = 16
"""Rounds get longer until messages fit, but a long partition must not make them endless. By default
32 s: with 8 s, voters whose answers took 6 s each, on a machine that was far too busy, agreed on
nothing for as long as it was. While too few are up no rounds are used up, and once messages fit
again whoever leads is heard at its next repetition.
"""


@dataclass(slots=True)
class RoundTimer:
    """Gives each round its time: round_timeout_s × (1 + rounds timed out), at most × 16."""

    round_timeout_s: float
    timeouts: int = 0
    deadline: float | None = None

    @property
    def round_s(self) -> float:
        """How long a round lasts now."""
        return self.round_timeout_s * min(1 + self.timeouts, ROUND_STRETCH_MAX)

    def ensure_started(self, now: float) -> None:
        if self.deadline is None:
            self.deadline = now + self.round_s

    def expired(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    def is_nearly_over(self, now: float) -> bool:
        """Whether the round has a quarter of a timeout to go at most: clocks differ by as much."""
        return self.deadline is not None and now >= self.deadline - self.round_timeout_s / 4

    def stop(self) -> None:
        self.deadline = None


def rounds_s(round_timeout_s: float, count: int) -> float:
    """How long the first `count` rounds of a height last if all of them time out."""
    return round_timeout_s * sum(min(1 + each, ROUND_STRETCH_MAX) for each in range(count))


@dataclass(slots=True)
class Repeater:
    """Says when to repeat what may have been lost: after 0.5 s, then in growing intervals."""

    interval_s: float = RESEND_FIRST_S
    due_at: float | None = None

    def start(self, now: float) -> None:
        self.interval_s = RESEND_FIRST_S
        self.due_at = now + self.interval_s

    def stop(self) -> None:
        self.due_at = None

    def take(self, now: float) -> bool:
        """Whether it is time now; if so the next time is set."""
        if self.due_at is None or now < self.due_at:
            return False
        self.interval_s = min(2 * self.interval_s, RESEND_MAX_S)
        self.due_at = now + self.interval_s
        return True


def earliest(*times: float | None) -> float | None:
    first = None
    for time in times:
        if time is not None and (first is None or time < first):
            first = time
    return first

"""Timers: when a round is over, and when to repeat a message.

Both run only while a decision is pending. The caller passes the time; this module does not read a
clock.
"""

from __future__ import annotations

from dataclasses import dataclass

RESEND_FIRST_S = 0.5
"""Seconds before a message is sent again. This is longer than a round trip around the world (0.3
s), so nothing is sent twice on a healthy network.
"""

RESEND_MAX_S = 4.0

ROUND_STRETCH_MAX = 16
"""Maximum length of a round, as a multiple of `round_timeout_s`. Rounds get longer until messages
arrive within a round, but a long partition must not make them grow without limit. By default, this
is 16 × 2 s = 32 s. With a maximum of 8 s, voters on an overloaded machine, which took 6 s for each
answer, failed to agree for as long as the overload lasted. While too few voters are up, rounds do
not time out. Once messages arrive in time again, the next message that the leader repeats reaches
the others.
"""


@dataclass(slots=True)
class RoundTimer:
    """The timer of rounds. A round lasts round_timeout_s × min(1 + timeouts, ROUND_STRETCH_MAX)."""

    round_timeout_s: float
    timeouts: int = 0
    deadline: float | None = None

    @property
    def round_s(self) -> float:
        """The current length of a round, in seconds."""
        return self.round_timeout_s * min(1 + self.timeouts, ROUND_STRETCH_MAX)

    def start(self, now: float) -> None:
        self.deadline = now + self.round_s

    def expired(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    def is_nearly_over(self, now: float) -> bool:
        """Return whether at most a quarter of `round_timeout_s` remains in the round. Voters may
        start a round at times that differ by this much.
        """
        return self.deadline is not None and now >= self.deadline - self.round_timeout_s / 4

    def stop(self) -> None:
        self.deadline = None


def rounds_s(round_timeout_s: float, count: int) -> float:
    """Return how long the first `count` rounds of a height last if all of them time out, in
    seconds.
    """
    return round_timeout_s * sum(min(1 + each, ROUND_STRETCH_MAX) for each in range(count))


@dataclass(slots=True)
class Repeater:
    """Decides when to repeat messages that may have been lost: after 0.5 s, then at growing
    intervals.
    """

    interval_s: float = RESEND_FIRST_S
    due_at: float | None = None

    def start(self, now: float) -> None:
        self.interval_s = RESEND_FIRST_S
        self.due_at = now + self.interval_s

    def stop(self) -> None:
        self.due_at = None

    def fires(self, now: float) -> bool:
        """Return whether it is time to repeat. If so, set the next time."""
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

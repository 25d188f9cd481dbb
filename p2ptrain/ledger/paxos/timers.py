"""Decide when to repeat a message, and how long rounds last. The caller passes the time."""

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
answer, failed to agree for as long as the overload lasted. Rounds do not time out while too few
voters are up.
"""


def round_s(round_timeout_s: float, timeouts: int) -> float:
    """Return the length in seconds of a round after `timeouts` rounds of its height timed out."""
    return round_timeout_s * min(1 + timeouts, ROUND_STRETCH_MAX)


def rounds_s(round_timeout_s: float, count: int) -> float:
    """Return how many seconds the first `count` rounds of a height last if all of them time out."""
    return sum(round_s(round_timeout_s, timeouts) for timeouts in range(count))


@dataclass(slots=True)
class Repeater:
    """Decides when to send a message again that may have been lost: after RESEND_FIRST_S, then at
    growing intervals of at most RESEND_MAX_S.
    """

    interval_s: float = RESEND_FIRST_S
    due_at: float | None = None

    def start(self, now: float) -> None:
        self.interval_s = RESEND_FIRST_S
        self.due_at = now + self.interval_s

    def stop(self) -> None:
        self.due_at = None

    def fires(self, now: float) -> bool:
        """Return whether to send the message again now. If so, set the time of the next repeat."""
        if self.due_at is None or now < self.due_at:
            return False
        self.interval_s = min(2 * self.interval_s, RESEND_MAX_S)
        self.due_at = now + self.interval_s
        return True


def earliest(*times: float | None) -> float | None:
    """Return the earliest of the times that are not None; None if all are None."""
    return min((time for time in times if time is not None), default=None)

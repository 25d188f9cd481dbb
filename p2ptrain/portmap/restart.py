"""Notice from a router's clock that it has restarted and may have lost its mappings.

Each answer of PCP and NAT-PMP contains the seconds since the router's start. The RFCs call this its
epoch. If that clock runs differently from ours between two answers, the router's state was lost
(RFC 6887, section 8.5).
"""

from __future__ import annotations

from dataclasses import dataclass

SLACK_S = 2.0
"""Tolerance for whole seconds and for the time that an answer travels (RFC 6887, section 8.5)."""

DRIFT = 1 / 16
"""Tolerance for clocks that run too fast or too slow: 6 % (RFC 6887, section 8.5)."""


@dataclass(frozen=True, slots=True)
class RouterClock:
    """The router had been up for `uptime_s` seconds at our local monotonic time `at_s`."""

    uptime_s: int
    at_s: float

    def restarted_before(self, newer: RouterClock) -> bool:
        """Return whether the router has restarted between this reading and a newer one."""
        ours, theirs = newer.at_s - self.at_s, newer.uptime_s - self.uptime_s
        assert ours >= 0, "readings are compared in the order in which they were made"
        if theirs < -1:
            return True
        too_fast = ours + SLACK_S < theirs - theirs * DRIFT
        too_slow = theirs + SLACK_S < ours - ours * DRIFT
        return too_fast or too_slow

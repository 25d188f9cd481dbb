"""Compute how long a ready quorum waits for the rest: as long as the rest usually takes, within
bounds.

Members differ in speed, and in every run differently, so no fixed time is right. If it is too
short, work that was nearly done is left out; if it is too long, everybody waits for members that
will not come. So this module uses the past: for each member that became ready after a quorum was,
how much later it was. The grace is the median of these lags plus a few times their spread (the
median absolute deviation, which one straggler does not move). A member that takes longer is left
out, and contributes in the next step.

This is one node's own estimate and decides only what it proposes. Other nodes do not check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LAGS_KEPT = 64
"""Lags kept: those of a dozen steps among a dozen members. Old habits are soon forgotten."""

LAGS_MIN = 8
"""Lags that it takes to compute a grace from them. Fewer say nothing about the usual."""

SPREADS = 6.0
"""Deviations that count as usual. For normally distributed lags 6 × MAD are 4 σ: one in 30,000 is
later.
"""

FLOOR = 1 / 3
"""Smallest grace, as a part of the agreed upper bound, however punctual all members were. A member
that comes back from a pause is late once, and its work is worth some seconds.
"""

MISSED_MAX = 1.5
"""Attempts without a member, halved every 8 commits, after which nobody waits for it at length. A
member that is never ready costs the others the grace in two outer steps, and none later. One that
comes back takes part whenever it is ready, and is waited for at length again after 8 commits for
each halving."""

CREDIT_SHARE = 1 / 20
"""For such members the others wait this part of the run's time at most. The quorum's own time earns
the credit, so a member that is never ready costs 5 % and no more."""

CREDIT_MIN_S = 0.5
"""A shorter wait is not begun; the credit is saved up for a later outer step. A report needs up to
0.3 s around the world, so in a run of very short steps a shorter wait would help nobody."""


def grace_after(lags: Sequence[float], upper_s: float) -> float:
    """Return the grace in seconds, given the lags in seconds. `upper_s` is the run's grace_s, which
    holds until there is data.
    """
    if len(lags) < LAGS_MIN:
        return upper_s
    middle = median(lags)
    spread = median(abs(lag - middle) for lag in lags)
    return min(max(middle + SPREADS * spread, FLOOR * upper_s), upper_s)


@dataclass(slots=True)
class Credit:
    """How long a ready quorum may wait if only members are awaited that were missing lately.

    Each outer step earns some of it. A step that begins to wait spends all of it.
    """

    saved_s: float = 0.0
    spent: bool = False

    def earn(self, quorum_took_s: float, most_s: float) -> None:
        """A quorum was ready `quorum_took_s` after the step began. At most `most_s` is kept."""
        if self.spent:
            self.saved_s, self.spent = 0.0, False
        self.saved_s = min(most_s, self.saved_s + CREDIT_SHARE * quorum_took_s)

    @property
    def grace_s(self) -> float:
        """The grace in seconds for this outer step."""
        return self.saved_s if self.saved_s >= CREDIT_MIN_S else 0.0

    def spend(self) -> None:
        """The quorum waits now."""
        self.spent = self.spent or self.grace_s > 0.0

"""Compute the grace: how long a quorum that is ready to average waits for the other members.

No fixed time suits every run, since the speeds of members differ. If the time is too short, work
that is almost done is left out; if it is too long, everybody waits for members that will not become
ready. So this module uses past *lags*: for each member that became ready after a quorum, how much
later it was. The grace is the median of these lags plus a multiple of their spread (the median
absolute deviation, which one straggler barely changes), within limits. A member that takes longer
is left out, and contributes in the next outer step.

This is one node's own estimate and decides only what it proposes. Other nodes do not check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LAGS_KEPT = 64
"""Number of lags kept. A dozen members have up to five lags a step, and fill this in 13 steps."""

LAGS_MIN = 8
"""Minimum number of lags for computing a grace. Fewer lags do not show what is usual."""

SPREADS = 6.0
"""Number of median absolute deviations (MAD) that count as usual. If lags are normally distributed,
6 × MAD is 4 σ, and one lag in 30,000 is longer.
"""

FLOOR = 1 / 3
"""Minimum grace, as a fraction of the maximum in the run's rules. It holds even if no member has
been late yet. A member that returns from a pause is late once; its work is worth a few seconds.
"""

MISSED_MAX = 1.5
"""Number of attempts without a member, halved every 8 commits, at which the others no longer give
it the full grace. So a member that is never ready costs the others the full grace in two outer
steps only. A member that comes back takes part whenever it is ready in time, and gets the full
grace again once its number has decayed.
"""

CREDIT_SHARE = 1 / 20
"""Maximum fraction of the run's time for which the others wait for members that were missing
recently: 5 %. A step's credit is this fraction of the time that its quorum took to be ready.
"""

CREDIT_MIN_S = 0.5
"""Minimum wait in seconds. A smaller credit is saved for a later outer step. A report takes up to
0.3 s around the world, so a shorter wait would often be in vain.
"""


def grace_after(lags: Sequence[float], upper_s: float) -> float:
    """Return the grace in seconds, given the lags in seconds. `upper_s` is the run's grace_s, which
    is used until there are enough lags.
    """
    if len(lags) < LAGS_MIN:
        return upper_s
    middle = median(lags)
    spread = median(abs(lag - middle) for lag in lags)
    return min(max(middle + SPREADS * spread, FLOOR * upper_s), upper_s)


@dataclass(slots=True)
class Credit:
    """How long a ready quorum may wait if all members that it waits for were missing recently.

    Each outer step adds to the credit `saved_s`. A step in which the quorum waits uses up all of
    it; `spent` says that this step does.
    """

    saved_s: float = 0.0
    spent: bool = False

    def earn(self, quorum_took_s: float, most_s: float) -> None:
        """Add the credit of a step whose quorum took `quorum_took_s`, up to `most_s`."""
        if self.spent:
            self.saved_s, self.spent = 0.0, False
        self.saved_s = min(most_s, self.saved_s + CREDIT_SHARE * quorum_took_s)

    @property
    def grace_s(self) -> float:
        """The grace in seconds for this outer step."""
        return self.saved_s if self.saved_s >= CREDIT_MIN_S else 0.0

    def spend(self) -> None:
        """Record that the quorum waits in this step."""
        self.spent = self.spent or self.grace_s > 0.0

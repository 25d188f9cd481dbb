"""Counts of findings, as shares with their 95 % bounds."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

RULE_OF_THREE = 3.0
"""If an event did not happen in n tries, its probability is below 3 / n, with 95 % confidence."""

Z = 1.645
"""One-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Share:
    """`count` events in `tries` tries."""

    count: int
    tries: int

    @property
    def share(self) -> float:
        return self.count / self.tries

    @property
    def upper(self) -> float:
        """Upper 95 % bound of the probability: by the rule of three for 0 events, else Wilson's."""
        return RULE_OF_THREE / self.tries if self.count == 0 else _wilson(self.count, self.tries)

    @property
    def lower(self) -> float:
        return max(0.0, 1 - Share(self.tries - self.count, self.tries).upper)

    def at_most(self) -> str:
        return f"{self.count} of {self.tries:,} (95 % bound: {100 * self.upper:.2g} %)"

    def at_least(self) -> str:
        return f"{self.count} of {self.tries:,} (95 % bound: {100 * self.lower:.1f} %)"


def _wilson(count: int, tries: int) -> float:
    share = count / tries
    centre = share + Z * Z / (2 * tries)
    spread = Z * sqrt(share * (1 - share) / tries + Z * Z / (4 * tries * tries))
    return min(1.0, (centre + spread) / (1 + Z * Z / tries))

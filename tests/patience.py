"""Time limits of waits that suit the machine: a wait fails only if it takes much longer than the
waits before it. A fixed limit that is long enough for a loaded machine hides a stall on a quiet one
for minutes, and one that suits a quiet machine fails on a loaded one."""

from __future__ import annotations

from dataclasses import dataclass

TIMES = 20
"""A wait may last as long as this many of the longest wait before it."""


@dataclass(slots=True)
class Patience:
    """Limits of the waits of one run. `least_s`: the limit of the first wait, and the least limit
    of the others."""

    least_s: float
    longest_s: float = 0.0

    @property
    def limit_s(self) -> float:
        """The limit of the next wait, in seconds."""
        return max(self.least_s, TIMES * self.longest_s)

    def note(self, took_s: float) -> None:
        """Learn from a wait that has ended well."""
        self.longest_s = max(self.longest_s, took_s)

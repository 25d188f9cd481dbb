"""Collect which participants abandoned the reduce under way, and which ones are accused but silent.

Counting a report takes time that depends on the report and not on the number of members. `blame`
decides what accusations mean for the next attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId


@dataclass(slots=True)
class Suspicion:
    """The accusations of one attempt. `reporters` are the peers that abandoned it, `accused` those
    that others accuse, and `confessed` those that accuse themselves.
    """

    reporters: set[PeerId] = field(default_factory=set)
    accused: set[PeerId] = field(default_factory=set)
    confessed: set[PeerId] = field(default_factory=set)

    @staticmethod
    def of(reports: Mapping[PeerId, Iterable[PeerId]]) -> Suspicion:
        """Count these reports: the suspects of each peer that abandoned the attempt."""
        suspicion = Suspicion()
        for reporter, suspects in reports.items():
            suspicion.add(reporter, suspects)
        return suspicion

    def add(self, reporter: PeerId, suspects: Iterable[PeerId]) -> bool:
        """Count one more reporter. Return whether it accuses anybody."""
        assert reporter not in self.reporters
        named = set(suspects)
        self.reporters.add(reporter)
        if reporter in named:
            self.confessed.add(reporter)
        self.accused |= named - {reporter}
        return bool(named)

    def fallen(self, participants: int) -> set[PeerId]:
        """Return the accused peers that have reported nothing, once more than half of the other
        `participants` abandoned the attempt. An honest peer that is well reports, too, though
        perhaps later than a liar does.
        """
        others_gave_up = 2 * len(self.reporters) > participants - 1
        return self.accused - self.reporters if others_gave_up else set()

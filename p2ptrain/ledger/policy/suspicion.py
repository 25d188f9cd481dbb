"""Collect which participants abandoned the current reduce, and which are accused but silent.

The time to count a report depends on its size, and not on the number of members. `blame` decides
which participants sit out the next attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId


@dataclass(slots=True)
class Suspicion:
    """The accusations of one attempt. `reporters` are the peers that abandoned it. `accused` are
    the peers that others accuse, and `confessed` those that accuse themselves.
    """

    reporters: set[PeerId] = field(default_factory=set)
    accused: set[PeerId] = field(default_factory=set)
    confessed: set[PeerId] = field(default_factory=set)

    @staticmethod
    def of(reports: Mapping[PeerId, Iterable[PeerId]]) -> Suspicion:
        """Count `reports`: the suspects named by each peer that abandoned the attempt."""
        suspicion = Suspicion()
        for reporter, suspects in reports.items():
            suspicion.add(reporter, suspects)
        return suspicion

    def add(self, reporter: PeerId, suspects: Iterable[PeerId]) -> bool:
        """Count one more reporter. Return whether it accuses any peer."""
        assert reporter not in self.reporters
        named = set(suspects)
        self.reporters.add(reporter)
        if reporter in named:
            self.confessed.add(reporter)
        self.accused |= named - {reporter}
        return bool(named)

    def fallen(self, participants: int) -> set[PeerId]:
        """Return the accused peers that have not reported, once more than half of the other
        `participants` have abandoned the attempt. An honest and healthy peer reports too, though
        maybe later than a liar.
        """
        others_gave_up = 2 * len(self.reporters) > participants - 1
        return self.accused - self.reporters if others_gave_up else set()

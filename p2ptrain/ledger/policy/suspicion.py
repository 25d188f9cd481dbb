"""Collect which participants abandoned the current reduce, and which peers they accuse. `blame`
uses this to decide which participants sit out the next attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId


@dataclass(slots=True)
class Suspicion:
    """The accusations in one attempt. `reporters` are the peers that abandoned it. `accused` are
    the peers that others accuse, and `confessed` those that accuse themselves.
    """

    reporters: set[PeerId] = field(default_factory=set)
    accused: set[PeerId] = field(default_factory=set)
    confessed: set[PeerId] = field(default_factory=set)

    @staticmethod
    def of(reports: Mapping[PeerId, Iterable[PeerId]]) -> Suspicion:
        """Count `reports`, which map each peer that abandoned the attempt to its suspects."""
        suspicion = Suspicion()
        for reporter, suspects in reports.items():
            suspicion.add(reporter, suspects)
        return suspicion

    def add(self, reporter: PeerId, suspects: Iterable[PeerId]) -> bool:
        """Count the report of one more peer. Return whether it names any suspect."""
        assert reporter not in self.reporters
        named = set(suspects)
        self.reporters.add(reporter)
        if reporter in named:
            self.confessed.add(reporter)
        self.accused |= named - {reporter}
        return bool(named)

    def fallen(self, participants: int) -> set[PeerId]:
        """Return the accused peers that have reported nothing. Return none until more than half of
        the other participants have abandoned the attempt: an honest and healthy peer reports too,
        but perhaps later than a liar. `participants` is their number.
        """
        others_gave_up = 2 * len(self.reporters) > participants - 1
        return self.accused - self.reporters if others_gave_up else set()

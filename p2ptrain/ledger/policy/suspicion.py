"""Who gave the reduce under way up, and who says nothing of it though others did.

Counted report by report, in a time that depends on what a report names and not on how many members
there are. What follows from accusations for the next attempt is in `blame`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId


@dataclass(slots=True)
class Suspicion:
    """`accused` are the peers that others accuse; `confessed` are those that accuse themselves."""

    reporters: set[PeerId] = field(default_factory=set)
    accused: set[PeerId] = field(default_factory=set)
    confessed: set[PeerId] = field(default_factory=set)

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
        """Return the peers that somebody accuses and that have said nothing, once more than half of
        the other `participants` gave up: an honest peer that is well reports, too, though perhaps
        later than a liar does.
        """
        others_gave_up = 2 * len(self.reporters) > participants - 1
        return self.accused - self.reporters if others_gave_up else set()

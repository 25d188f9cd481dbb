"""Who gave the reduce under way up, and whom they suspect.

Two neighbours may well accuse each other, so one voice is not much: a peer is blamed if at least
half of the others that reported name it. Against itself one voice is enough: who names itself knows
that its work is lost. Counted report by report, in a time that depends on what a report names and
not on how many members there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId


@dataclass(slots=True)
class Suspicion:
    """`blamed` are those whom at least half of the other reporters suspect; `confessed` are those
    who suspect themselves.
    """

    reporters: set[PeerId] = field(default_factory=set)
    blamed: set[PeerId] = field(default_factory=set)
    confessed: set[PeerId] = field(default_factory=set)
    _voices: Counter[PeerId] = field(default_factory=Counter)

    def add(self, reporter: PeerId, suspects: Iterable[PeerId]) -> bool:
        """Count one more reporter. Returns whether others are blamed after it than before, or it
        confessed.

        One more report makes nobody blamed but whom it names, and clears nobody but who was blamed;
        there are at most twice as many of those as a report names on average.
        """
        assert reporter not in self.reporters
        named = set(suspects)
        confesses = reporter in named
        if confesses:
            self.confessed.add(reporter)
            named.discard(reporter)
        self.reporters.add(reporter)
        self._voices.update(named)
        before = self.blamed
        self.blamed = {peer for peer in before | named if self._is_blamed(peer)}
        return confesses or self.blamed != before

    def fallen(self, participants: int) -> set[PeerId]:
        """Who is blamed by more than half of the other `participants` and has not said a word
        itself: few may lie, and who is well reports, too, though perhaps later than liars do.
        """
        silent = self.blamed - self.reporters
        return {peer for peer in silent if 2 * self._voices[peer] > participants - 1}

    def _is_blamed(self, peer: PeerId) -> bool:
        others = len(self.reporters) - (peer in self.reporters)
        return others <= 2 * self._voices[peer]

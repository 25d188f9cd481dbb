"""Count which updates participants report for the current reduce (SPEC.md S12).

All participants compute the same bytes, but liars can report an invented update. So an update
counts only once more than half of the participants report it, including those that have gone down
since then. A node believes its own result, but abandons it when too few others can still report it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId


@dataclass(slots=True)
class UpdateVotes:
    """The reported updates of one reduce. `participants` is the number of participants. `open` are
    those that are up and have reported neither an update nor a failure.
    """

    participants: int
    open: set[PeerId] = field(default_factory=set)
    _made: Counter[Digest] = field(default_factory=Counter)

    def add(self, peer: PeerId, update: Digest) -> None:
        """Count the update that a participant reports."""
        self.open.discard(peer)
        self._made[update] += 1

    def agreed(self) -> Digest | None:
        """Return the update that more than half of the participants report, or None."""
        most = self._made.most_common(1)
        return most[0][0] if most and self._is_majority(most[0][1]) else None

    def may_agree(self, update: Digest) -> bool:
        """Return whether more than half of the participants can still report `update`."""
        return self._is_majority(self._made[update] + len(self.open))

    @property
    def lost(self) -> bool:
        """Whether no update can still be reported by more than half of the participants."""
        return not self._is_majority(max(self._made.values(), default=0) + len(self.open))

    def _is_majority(self, count: int) -> bool:
        return 2 * count > self.participants

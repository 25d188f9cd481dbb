"""Count which participants say that they made which update in the reduce under way (SPEC.md S12).

All participants compute the same bytes, but a report costs nothing, so a few may have invented
theirs. A result counts once more than half of the participants report it, also those that have gone
down since. A node believes its own result, but that is useful only as long as enough others may
still report the same. Reports are counted one by one, as in `suspicion`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId


@dataclass(slots=True)
class UpdateVotes:
    """The reported updates of one reduce. `participants` is their number; `open` are those that are
    up and have reported nothing yet.
    """

    participants: int
    open: set[PeerId] = field(default_factory=set)
    _made: Counter[Digest] = field(default_factory=Counter)

    def add(self, peer: PeerId, update: Digest) -> None:
        """Count a participant that has made an update."""
        self.open.discard(peer)
        self._made[update] += 1

    def agreed(self) -> Digest | None:
        """Return the update that more than half made, or None."""
        most = self._made.most_common(1)
        return most[0][0] if most and self._is_majority(most[0][1]) else None

    def may_agree(self, update: Digest) -> bool:
        """Return whether more than half may still report `update`."""
        return self._is_majority(self._made[update] + len(self.open))

    @property
    def lost(self) -> bool:
        """Whether no update is left that more than half may still report."""
        return not self._is_majority(max(self._made.values(), default=0) + len(self.open))

    def _is_majority(self, count: int) -> bool:
        return 2 * count > self.participants

"""Who says that it made which update in the reduce under way (SPEC.md S12).

All participants compute the same bytes, but a report costs nothing: what a few say may be their
invention. So a result counts once more than half of the participants say that they made it, dead or
alive; and its own a node believes by itself, which is worth something to it only as long as enough
others may still say the same. Counted report by report, as `suspicion` does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId


@dataclass(slots=True)
class Voices:
    """`open` are those of so many `participants` who are up and have reported nothing yet."""

    participants: int
    open: set[PeerId] = field(default_factory=set)
    _made: Counter[Digest] = field(default_factory=Counter)

    def add(self, peer: PeerId, update: Digest) -> None:
        """One more participant has made an update."""
        self.open.discard(peer)
        self._made[update] += 1

    def agreed(self) -> Digest | None:
        """The update that more than half made."""
        most = self._made.most_common(1)
        return most[0][0] if most and self._is_majority(most[0][1]) else None

    def may_agree(self, update: Digest) -> bool:
        """Whether more than half may yet say that they made `update`."""
        return self._is_majority(self._made[update] + len(self.open))

    @property
    def lost(self) -> bool:
        """Whether there is no update left of which more than half may yet say so."""
        return not self._is_majority(max(self._made.values(), default=0) + len(self.open))

    def _is_majority(self, count: int) -> bool:
        return 2 * count > self.participants

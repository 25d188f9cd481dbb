"""The ledger's chain, indexed by outer step: which entry ended a step, and who took part in it.

An index that follows the chain as it grows, since the chain is looked at for every step that a
newcomer replays.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2ptrain.ledger.values import Certified, Commit, Participant, Roster


class History:
    """`chain` is the ledger's own list, which only ever grows at its end."""

    def __init__(self, chain: Sequence[Certified]) -> None:
        self._chain = chain
        self._seen = 0
        self._closing: list[Certified] = []
        self._participants: list[tuple[Participant, ...]] = []
        self._open: tuple[Participant, ...] = ()

    def _follow(self) -> None:
        for certified in self._chain[self._seen :]:
            value = certified.entry.value
            if isinstance(value, Roster):
                self._open = value.participants
            else:
                took_part = self._open if isinstance(value, Commit) else ()
                self._closing.append(certified)
                self._participants.append(took_part)
                self._open = ()
        self._seen = len(self._chain)

    def closing(self, step: int) -> Certified:
        """The Commit or Skip that ended outer step `step`, which must have ended."""
        self._follow()
        return self._closing[step]

    def participants(self, step: int) -> tuple[Participant, ...]:
        """Those whose work went into the update of outer step `step`; nobody if it was skipped."""
        self._follow()
        return self._participants[step]

    def last_participants(self) -> tuple[Participant, ...]:
        """Those of the last committed outer step; nobody before the first."""
        self._follow()
        return next((each for each in reversed(self._participants) if each), ())

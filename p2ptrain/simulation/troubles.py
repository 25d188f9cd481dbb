"""What has happened to whom: the ground truth for the checkers of fairness."""

from __future__ import annotations

from collections import Counter

from p2ptrain.ids import PeerId
from p2ptrain.simulation.clock import Clock


class Troubles:
    """`causes` counts what could make others give a peer up; `since` is from when on all was well
    with it, for those with whom it is. `slow` peers train longer than the grace.
    """

    def __init__(self, clock: Clock) -> None:
        self.causes: Counter[PeerId] = Counter()
        self.since: dict[PeerId, float] = {}
        self.slow: set[PeerId] = set()
        self._clock = clock

    @property
    def now(self) -> float:
        return self._clock.now

    def begin(self, peer: PeerId) -> None:
        self.causes[peer] += 1
        self.since.pop(peer, None)

    def end(self, peer: PeerId) -> None:
        self.since[peer] = self._clock.now

"""The troubles of each peer: the ground truth for the checkers of fairness."""

from __future__ import annotations

from collections import Counter

from p2ptrain.ids import PeerId
from p2ptrain.simulation.clock import Clock


class Troubles:
    """The troubles of all peers.

    `causes` counts the events for which others may give a peer up. `since` is the time since when a
    peer has been well, for peers that are well now. `slow` peers train longer than the grace time.
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

"""The faults that really happened to each peer, for the fairness checkers."""

from __future__ import annotations

from collections import Counter

from p2ptrain.ids import PeerId
from p2ptrain.simulation.clock import Clock


class Troubles:
    """`causes` counts the events that give others a reason to drop a peer. `since` maps each
    healthy peer to the time at which it became healthy. Others do not wait for `slow` peers."""

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

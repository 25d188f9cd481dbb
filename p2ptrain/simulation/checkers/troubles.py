"""The faults that really happened to each peer, for the fairness checkers."""

from __future__ import annotations

from collections import Counter

from p2ptrain.ids import PeerId
from p2ptrain.simulation.clock import Clock

NOTICED_S = 3.0
"""A peer that was back for a shorter time may have gone again before others noticed: this is one
heartbeat, and some time for messages that were lost."""


class Troubles:
    """`causes` counts the events that give others a reason to drop a peer. `since` maps each
    healthy peer to the time at which it became healthy. `left` maps each peer to the time at which
    it last stopped being healthy; `went` is the same, but ignores that it was back for too short a
    time for others to notice. Others do not wait for `slow` peers."""

    def __init__(self, clock: Clock) -> None:
        self.causes: Counter[PeerId] = Counter()
        self.since: dict[PeerId, float] = {}
        self.left: dict[PeerId, float] = {}
        self.went: dict[PeerId, float] = {}
        self.slow: set[PeerId] = set()
        self._clock = clock

    @property
    def now(self) -> float:
        return self._clock.now

    def begin(self, peer: PeerId) -> None:
        self.causes[peer] += 1
        since = self.since.pop(peer, None)
        if peer not in self.left or since is not None:
            self.left[peer] = self.now
        if peer not in self.went or (since is not None and since + NOTICED_S <= self.now):
            self.went[peer] = self.now

    def end(self, peer: PeerId) -> None:
        self.since[peer] = self._clock.now

    def away_for(self, seconds: float) -> frozenset[PeerId]:
        """Return the peers that may have seemed away for `seconds`. A peer that came back within
        the last NOTICED_S counts, since others may not have noticed.
        """
        long_s = self.now - seconds
        absent = {peer for peer, went in self.went.items() if went <= long_s}
        back = {peer for peer, since in self.since.items() if since + NOTICED_S <= self.now}
        return frozenset(absent - back)

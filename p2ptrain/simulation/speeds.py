"""How fast the trainers of a simulated world are."""

from __future__ import annotations

from random import Random

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.profiles import Profile

TRAIN_S = (0.8, 1.6)
"""Shortest and longest time to train on a whole lease, in seconds. Training is short, so that
faults hit every part of an outer step."""

SLOWNESS = 6.0
"""A slow peer takes this many times as long to train. The others do not wait that long."""


class Speeds:
    """With a `speed_ratio` in the profile, each peer draws its speed between 1 and that ratio, and
    every peer may be slow. The draws have their own random generator."""

    def __init__(self, rules: Rules, profile: Profile, troubles: Troubles) -> None:
        self._lease = rules.blocks_per_lease
        self._ratio = profile.speed_ratio
        self._random = Random(f"{profile.name}/{rules.run}/speeds")
        self._troubles = troubles
        self._drawn: dict[PeerId, float] = {}

    def draw(self, peer: PeerId) -> None:
        if self._ratio > 1:
            self._drawn[peer] = self._ratio ** self._random.random()
            self._troubles.slow.add(peer)

    def training_s(self, peer: PeerId, blocks: int, random: Random) -> float:
        """Return how long `peer` trains on this many blocks, in seconds."""
        share = blocks / self._lease
        slowness = self._drawn.get(peer, SLOWNESS if peer in self._troubles.slow else 1.0)
        return share * slowness * random.uniform(*TRAIN_S)

"""The simulated reduce: participants meet in a ring, and each of them succeeds or fails.

The rings also record the blocks that really went into each update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.simulation.clock import Clock
from p2ptrain.simulation.disk import digest
from p2ptrain.simulation.liars.spoiling import SpoiledEnding, Spoiler, update_apart
from p2ptrain.simulation.network import SimNetwork
from p2ptrain.simulation.profiles import Profile

REDUCE_S = (0.1, 0.6)
JOIN_DEADLINE_S = 2.0

Finish = Callable[[Digest | None, tuple[PeerId, ...]], None]
"""Called as finish(update, suspects): with the update, or with None and the suspects."""


def update_of(entry: Digest) -> Digest:
    """Return the update of the attempt that this roster entry opened."""
    return digest(f"update{entry}")


@dataclass(slots=True)
class SimRing:
    """One attempt of a reduce. A roster entry opened it."""

    roster: Roster
    update: Digest
    blocks: dict[PeerId, tuple[int, ...]] = field(default_factory=dict)
    finishers: dict[PeerId, Finish] = field(default_factory=dict)
    ended: bool = False


class SimRings:
    def __init__(self, clock: Clock, random: Random, profile: Profile, network: SimNetwork) -> None:
        self.faulty = True
        self.spoilers: dict[PeerId, Spoiler] = {}
        self.by_entry: dict[Digest, SimRing] = {}
        self._clock = clock
        self._random = random
        self._profile = profile
        self._network = network

    def enter(
        self, entry: Digest, roster: Roster, me: PeerId, blocks: tuple[int, ...], finish: Finish
    ) -> None:
        """Let `me` enter the ring with exactly these trained blocks."""
        ring = self.by_entry.get(entry)
        if ring is None:
            ring = self.by_entry[entry] = SimRing(roster, update_of(entry))
            self._clock.after(JOIN_DEADLINE_S, lambda: self._too_late(ring))
        if ring.ended:
            self._clock.after(0.02, lambda: finish(None, ()))
            return
        ring.blocks[me] = blocks
        ring.finishers[me] = finish
        if ring.finishers.keys() == set(ring.roster.peers):
            duration_s = self._random.uniform(*REDUCE_S)
            spoiler = next((peer for peer in ring.roster.peers if peer in self.spoilers), None)
            how = self.spoilers[spoiler].ending(ring.roster.peers) if spoiler else None
            if how is None:
                self._clock.after(duration_s, lambda: self._complete(ring))
            else:
                self._spoil(ring, how, duration_s)

    def is_under_way(self) -> bool:
        """Return whether any ring has all its participants and has not ended."""
        rings = self.by_entry.values()
        return any(not it.ended and len(it.finishers) == len(it.roster.peers) for it in rings)

    def lost(self, peer: PeerId) -> None:
        """Make all rings of `peer` fail, because it crashed or left and its neighbours notice."""
        for ring in self.by_entry.values():
            if not ring.ended and peer in ring.roster.peers and ring.finishers:
                ring.finishers.pop(peer, None)
                self._fail(ring, (peer,))

    def _too_late(self, ring: SimRing) -> None:
        missing = tuple(peer for peer in ring.roster.peers if peer not in ring.finishers)
        if not ring.ended and missing:
            self._fail(ring, missing)

    def _complete(self, ring: SimRing) -> None:
        if ring.ended:
            return
        peers = ring.roster.peers
        for one, other in zip(peers, peers[1:] + peers[:1], strict=True):
            if not self._network.joins(one, other):
                self._fail(ring, (other,))
                return
        chance = self._random.random()
        if self.faulty and chance < self._profile.reduce_fails:
            self._fail(ring, self._random.choice(((), (self._random.choice(peers),))))
        elif self.faulty and chance < self._profile.reduce_fails + self._profile.reduce_half_done:
            self._end(ring, lambda: self._random.random() < 0.5, ())
        else:
            self._end(ring, lambda: True, ())

    def _spoil(self, ring: SimRing, how: SpoiledEnding, duration_s: float) -> None:
        """End the ring as its spoiler arranged. Other participants do not repeat the spoiler's
        accusations."""

        def end() -> None:
            for peer, finish in ring.finishers.items() if not ring.ended else ():
                if peer in how.made:
                    update = update_apart(ring.update, peer) if how.differ else ring.update
                    finish(update, ())
                elif len(ring.roster.peers) > 1:
                    finish(None, how.accusations.get(peer, ()))
            ring.ended = True

        self._clock.after(duration_s + how.after_s, end)

    def _fail(self, ring: SimRing, suspects: tuple[PeerId, ...]) -> None:
        self._end(ring, lambda: False, suspects)

    def _end(
        self, ring: SimRing, succeeds: Callable[[], bool], suspects: tuple[PeerId, ...]
    ) -> None:
        ring.ended = True
        for finish in ring.finishers.values():
            update = ring.update if succeeds() else None
            delay_s = self._random.uniform(0.001, 0.05)
            self._clock.after(delay_s, partial(finish, update, suspects))

"""A simulated crowd of joiners, without sockets or clocks. The joiners start at about the same
time, when only one seed holds the chunks. Each joiner fetches from the seed and from all other
joiners, and serves the chunks it has so far.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from p2ptrain.ids import Digest
from p2ptrain.swarm import Picker
from p2ptrain.swarm.server import MISS_S, MISS_S_MAX

SEED = 0
RTT_S = 0.04
STAGGER_S = 0.5
"""Seconds between the start of one joiner and the next."""


@dataclass
class Crowd:
    """A seed and its joiners. Each of them has an uplink that sends `chunks_per_s` chunks per
    second, one at a time.
    """

    joiners: int
    chunks: int
    chunks_per_s: float = 3.0
    lost: frozenset[int] = frozenset()
    """Numbers of the chunks that nobody has, not even the seed."""
    seed_ends_at: float = float("inf")

    now: float = 0.0
    sent: Counter[int] = field(default_factory=Counter)
    """Number of chunks sent, by sender."""
    misses: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Number of "missing" answers, by (sender, receiver)."""
    ended_at: dict[int, float] = field(default_factory=dict)

    def run(self) -> Crowd:
        """Run until each joiner has all chunks or its picker is stuck."""
        self._digests = [Digest(f"{number:064x}") for number in range(self.chunks)]
        everything = {self._digests[n] for n in range(self.chunks) if n not in self.lost}
        self.held = [everything, *(set[Digest]() for _ in range(self.joiners))]
        self._free_at = defaultdict[int, float](float)
        self._in_a_row = Counter[tuple[int, int]]()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._wakes_at = count(), dict[tuple[int, int], float]()
        self._pickers = {me: self._picker_of(me) for me in range(1, self.joiners + 1)}
        for me in self._pickers:
            self._at(me * STAGGER_S, partial(self._ask, me))
        if self.seed_ends_at < float("inf"):
            self._at(self.seed_ends_at, self._end_seed)
        while self._events and len(self.ended_at) < self.joiners:
            self.now, _, happens = heapq.heappop(self._events)
            happens()
        return self

    def _picker_of(self, me: int) -> Picker[int]:
        picker = Picker([peer for peer in range(self.joiners + 1) if peer != me])
        picker.want(random.Random(me).sample(self._digests, self.chunks))
        return picker

    def _at(self, at: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), happens))

    def _ask(self, me: int) -> None:
        picker = self._pickers[me]
        if picker.done or picker.stuck:
            self.ended_at.setdefault(me, self.now)
            return
        for peer in sorted(picker.lanes):
            while (digest := picker.next(peer, self.now)) is not None:
                self._at(self.now + RTT_S / 2, partial(self._serve, peer, me, digest))
            self._wake(me, peer)

    def _wake(self, me: int, peer: int) -> None:
        at = self._pickers[me].reconsider_at(peer, self.now)
        if at is not None and not self.now < self._wakes_at.get((me, peer), 0.0) <= at:
            self._wakes_at[me, peer] = at
            self._at(at, lambda: self._ask(me))

    def _serve(self, peer: int, me: int, digest: Digest) -> None:
        if digest in self.held[peer]:
            self._in_a_row[peer, me] = 0
            begins = max(self.now, self._free_at[peer])
            self._free_at[peer] = begins + 1 / self.chunks_per_s
            self._at(self._free_at[peer] + RTT_S / 2, lambda: self._bring(peer, me, digest))
            return
        pause_s = min(self._in_a_row[peer, me] * MISS_S, MISS_S_MAX)
        self._in_a_row[peer, me] += 1
        self._at(self.now + pause_s + RTT_S / 2, lambda: self._lack(peer, me, digest))

    def _bring(self, peer: int, me: int, digest: Digest) -> None:
        if peer in self._pickers[me].lanes:
            self.sent[peer] += 1
            self._pickers[me].arrived(peer, digest, self.now)
            self.held[me].add(digest)
            self._ask(me)

    def _lack(self, peer: int, me: int, digest: Digest) -> None:
        if peer in self._pickers[me].lanes:
            self.misses[peer, me] += 1
            self._pickers[me].lacks(peer, digest, self.now)
            self._ask(me)

    def _end_seed(self) -> None:
        for me, picker in self._pickers.items():
            picker.drop(SEED)
            self._ask(me)

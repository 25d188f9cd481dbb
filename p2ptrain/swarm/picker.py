"""Which chunk to ask of which source next: a pure decision, told what happened and what time it is.

Rules, in this order:
1. A chunk that some sources lack goes first to a source that may have it, the rarest first.
2. Else any chunk that nobody has been asked for, in the order in which they are wanted.
3. Else, near the end or when a source is stuck, a chunk that another source has been asked for much
   longer ago than chunks usually take: whichever copy comes first counts.

A source is taken to hold everything until it says that it lacks a chunk. Sources are *lanes*: one
connection to one peer each, named by whatever the caller likes. The picker knows neither sockets
nor stores, and holds no lock: its caller does.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Set
from typing import Generic, TypeVar

from p2ptrain.ids import Digest

LaneT = TypeVar("LaneT", bound=Hashable)

IN_FLIGHT_MAX = 4
"""Requests that one lane may have open: 16 MiB, or 100 Mbit/s over a second of latency."""

COPIES_MAX = 4
"""How many lanes may be asked for the same chunk before the first copy has come."""

PATIENCE_FACTOR = 3.0
PATIENCE_MIN_S = 0.5
PATIENCE_UNKNOWN_S = 5.0
"""How long a chunk may take before another lane is asked too: three times what chunks usually take,
counted from the request; until one has come, a time in which 7 Mbit/s bring one."""

_LEARNING_RATE = 0.25


class Picker(Generic[LaneT]):
    """The chunks still wanted, and the lanes that they may come from.

    Call `next` when a lane has room; then one of `arrived` and `lacks` for each chunk so assigned,
    or `drop` for the lane. The fetch is over when `done`, or when `stuck`: nothing is coming and
    no lane that is left may have what is wanted.
    """

    def __init__(self, lanes: Iterable[LaneT], *, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        assert in_flight_max >= 1
        self._in_flight_max = in_flight_max
        self._load: dict[LaneT, int] = dict.fromkeys(lanes, 0)
        # A wanted chunk is in exactly one of these: not asked for, not asked for and lacked by
        # some, or asked for (of whom, and when).
        self._plenty: dict[Digest, None] = {}
        self._scarce: dict[Digest, None] = {}
        self._asked: dict[Digest, dict[LaneT, float]] = {}
        self._lacking: dict[Digest, set[LaneT]] = {}
        self._urgent: set[Digest] = set()
        self._usual_s: float | None = None

    def want(self, digests: Iterable[Digest], *, urgent: bool = False) -> None:
        """Add chunks. One that is wanted already is left as it is.

        An urgent one is short and holds up all the rest, as a manifest does: patience is at its
        minimum from the start.
        """
        digests = list(digests)
        if urgent:
            self._urgent.update(digests)
        for digest in digests:
            if digest not in self._asked and digest not in self._scarce:
                self._plenty[digest] = None

    @property
    def lanes(self) -> Set[LaneT]:
        """Those that were not dropped."""
        return self._load.keys()

    @property
    def done(self) -> bool:
        return not (self._plenty or self._scarce or self._asked)

    @property
    def stuck(self) -> bool:
        return not self.done and not self._asked and len(self.hopeless) == self.left

    @property
    def left(self) -> int:
        """How many chunks are still wanted."""
        return len(self._plenty) + len(self._scarce) + len(self._asked)

    @property
    def hopeless(self) -> Collection[Digest]:
        """The chunks that no lane that is left may have, and that are not on their way."""
        if not self._load:
            return [*self._plenty, *self._scarce]
        return [digest for digest in self._scarce if self._holders(digest) == 0]

    def next(self, lane: LaneT, now: float) -> Digest | None:
        """The chunk to ask this lane for now, which then counts as asked for; None if none is."""
        if self._load.get(lane, self._in_flight_max) >= self._in_flight_max:
            return None
        digest = self._rarest_for(lane) or next(iter(self._plenty), None) or self._late(lane, now)
        if digest is not None:
            self._plenty.pop(digest, None)
            self._scarce.pop(digest, None)
            self._asked.setdefault(digest, {})[lane] = now
            self._load[lane] += 1
        return digest

    def arrived(self, lane: LaneT, digest: Digest, now: float) -> bool:
        """The lane has brought the chunk, and it was right. False if another lane was first."""
        # Other lanes' copies are released when they come: until then they fill their connections.
        self._release(lane)
        copies = self._asked.pop(digest, None)
        if copies is None:
            return False
        self._lacking.pop(digest, None)
        if lane in copies:
            self._learn(now - copies[lane])
        return True

    def lacks(self, lane: LaneT, digest: Digest) -> None:
        """The lane has said that it does not have the chunk."""
        self._release(lane)
        if digest in self._asked:
            self._lacking.setdefault(digest, set()).add(lane)
            self._withdraw(lane, digest)

    def lacks_too(self, lane: LaneT, digest: Digest) -> None:
        """The lane will lack the chunk, as another connection to the same peer has said."""
        if digest in self._asked or digest in self._plenty or digest in self._scarce:
            self._lacking.setdefault(digest, set()).add(lane)
            if digest in self._plenty:
                del self._plenty[digest]
                self._scarce[digest] = None

    def drop(self, lane: LaneT) -> None:
        """Nothing more comes from this lane; what it was asked for is asked of others."""
        self._load.pop(lane, None)
        for digest in [digest for digest, copies in self._asked.items() if lane in copies]:
            self._withdraw(lane, digest)

    def reconsider_at(self) -> float | None:
        """When `next` may have an answer that it does not have now, if nothing happens before."""
        return min(map(self._late_at, self._asked), default=None)

    def _withdraw(self, lane: LaneT, digest: Digest) -> None:
        copies = self._asked[digest]
        copies.pop(lane, None)
        if not copies:
            del self._asked[digest]
            where = self._scarce if digest in self._lacking else self._plenty
            where[digest] = None

    def _release(self, lane: LaneT) -> None:
        if lane in self._load:
            self._load[lane] -= 1
            assert self._load[lane] >= 0

    def _holders(self, digest: Digest) -> int:
        lacking = self._lacking.get(digest, set())
        return sum(lane not in lacking for lane in self._load)

    def _rarest_for(self, lane: LaneT) -> Digest | None:
        candidates = [digest for digest in self._scarce if lane not in self._lacking[digest]]
        return min(candidates, key=self._holders, default=None)

    def _late(self, lane: LaneT, now: float) -> Digest | None:
        late = [
            digest
            for digest, copies in self._asked.items()
            if lane not in copies
            and lane not in self._lacking.get(digest, ())
            and len(copies) < COPIES_MAX
            and self._late_at(digest) <= now
        ]
        return min(late, key=self._late_at, default=None)

    def _late_at(self, digest: Digest) -> float:
        """When a chunk that was asked for becomes late."""
        patience_s = PATIENCE_MIN_S
        if digest not in self._urgent:
            usual_s = self._usual_s
            patience_s = (
                PATIENCE_UNKNOWN_S
                if usual_s is None
                else max(PATIENCE_MIN_S, PATIENCE_FACTOR * usual_s)
            )
        return max(self._asked[digest].values()) + patience_s

    def _learn(self, taken_s: float) -> None:
        known = taken_s if self._usual_s is None else self._usual_s
        self._usual_s = known + _LEARNING_RATE * (taken_s - known)

"""Which chunk to ask of which source next: a pure decision, told what happened and what time it is.

Rules, in this order:
1. A chunk that some sources lack goes first to a source that may have it, the rarest first.
2. Else any chunk that nobody has been asked for, in the order in which they are wanted.
3. Else, at the end, a chunk that another source has been asked for and will bring much later than
   this one would, by what each has brought so far; or one that is overdue: whichever copy comes
   first counts.

How many requests a source may have open follows from its rate: what it brings in `AHEAD_S`, and one
more; a manifest, which is short, says nothing of it. So a fast source never runs dry, and a slow
one holds little that the others wait for at the end. One that has just said that it lacks a chunk
has one open until it brings something.

A source is taken to hold everything until it says that it lacks a chunk. Sources are *lanes*: one
connection to one peer each, named by whatever the caller likes. The picker knows neither sockets
nor stores, and holds no lock: its caller does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from p2ptrain.ids import Digest

LaneT = TypeVar("LaneT", bound=Hashable)

IN_FLIGHT_FIRST = 1
"""Requests open before the lane's rate is known. It costs a round trip once; with more, a short
blob would be asked of the first two sources, however slow, and of nobody else. Two where there is
plenty brought 0.2 % of a long fetch, and cost a short one from unequal sources a third."""

IN_FLIGHT_MAX = 16
"""64 MiB: 10 Gbit/s over 50 ms. A request costs its source nothing before its turn comes."""

AHEAD_S = 1.0
"""Longer than any round trip, so that the path's latency is never waited for."""

COPIES_MAX = 4
"""How many lanes may be asked for the same chunk as soon as it is overdue. For each further one
patience is twice as long: sources in league that keep a chunk back only delay it, and a line that
stands still is not asked for everything again and again."""

SOONER_FACTOR = 1.5
"""A copy is asked for if the first is expected to take so much longer: half as much is no accident
of measuring."""

PATIENCE_FACTOR = 3.0
PATIENCE_MIN_S = 0.5
PATIENCE_UNKNOWN_S = 5.0
"""How long a chunk may take before another lane is asked too: three times what chunks usually take,
counted from the request; until one has come, a time in which 7 Mbit/s bring one."""

_LEARNING_RATE = 0.25


@dataclass(slots=True)
class Pace:
    """What is known of one lane. `interval_s` is between two chunks of a lane that is kept busy."""

    open: dict[Digest, float] = field(default_factory=dict)
    """What it was asked for and has not answered, and when."""
    interval_s: float | None = None
    heard_at: float = -math.inf
    free_at: float = -math.inf
    """When all that it was asked for should have come."""
    doubtful: bool = False
    """It lacked what it was asked for last."""

    def in_flight_max(self, limit: int) -> int:
        if self.doubtful:
            return 1
        if self.interval_s is None:
            return min(limit, IN_FLIGHT_FIRST)
        if self.interval_s * limit <= AHEAD_S:
            return limit
        return min(limit, 1 + math.ceil(AHEAD_S / self.interval_s))

    def asked(self, digest: Digest, now: float, usual_s: float | None) -> float | None:
        """One more request. Returns when its answer is expected, if anything is known."""
        self.open[digest] = now
        interval_s = usual_s if self.interval_s is None else self.interval_s
        if interval_s is None:
            return None
        self.free_at = max(now, self.free_at) + interval_s
        return self.free_at

    def brought(self, digest: Digest, now: float, *, is_usual: bool = True) -> None:
        """A chunk has come: learn how long one takes, without the wait for those before it. One
        that is shorter than usual teaches nothing.
        """
        if is_usual:
            taken_s = now - max(self.open[digest], self.heard_at)
            known_s = taken_s if self.interval_s is None else self.interval_s
            self.interval_s = known_s + _LEARNING_RATE * (taken_s - known_s)
        self.doubtful = False
        self._answered(digest, now)

    def lacked(self, digest: Digest, now: float) -> None:
        self.doubtful = True
        self._answered(digest, now)

    def _answered(self, digest: Digest, now: float) -> None:
        del self.open[digest]
        self.heard_at = now
        if not self.open:
            self.free_at = now


@dataclass(frozen=True, slots=True)
class Asked:
    """A chunk asked of a lane: when, and when it is expected, if anything is known."""

    at: float
    expected_at: float | None


class Picker(Generic[LaneT]):
    """The chunks still wanted, and the lanes that they may come from.

    Call `next` when a lane has room; then one of `arrived` and `lacks` for each chunk so assigned,
    or `drop` for the lane. The fetch is over when `done`, or when `stuck`: nothing is coming and
    no lane that is left may have what is wanted.
    """

    def __init__(self, lanes: Iterable[LaneT], *, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        assert in_flight_max >= 1
        self._in_flight_max = in_flight_max
        self._paces: dict[LaneT, Pace] = {lane: Pace() for lane in lanes}
        # A wanted chunk is in exactly one of these: not asked for, not asked for and lacked by
        # some, or asked for (of whom, and when).
        self._plenty: dict[Digest, None] = {}
        self._scarce: dict[Digest, None] = {}
        self._asked: dict[Digest, dict[LaneT, Asked]] = {}
        self._lacking: dict[Digest, set[LaneT]] = {}
        self._urgent: set[Digest] = set()
        self._usual_s: float | None = None

    def add(self, lane: LaneT) -> None:
        """One more source, or one that was dropped and is back."""
        self._paces.setdefault(lane, Pace())

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
        return self._paces.keys()

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
        if not self._paces:
            return [*self._plenty, *self._scarce]
        return [digest for digest in self._scarce if self._holders(digest) == 0]

    def next(self, lane: LaneT, now: float) -> Digest | None:
        """The chunk to ask this lane for now, which then counts as asked for; None if none is."""
        pace = self._paces.get(lane)
        if pace is None or len(pace.open) >= pace.in_flight_max(self._in_flight_max):
            return None
        digest = self._rarest_for(lane) or next(iter(self._plenty), None) or self._copy(lane, now)
        if digest is not None:
            self._plenty.pop(digest, None)
            self._scarce.pop(digest, None)
            expected_at = pace.asked(digest, now, self._usual_s)
            self._asked.setdefault(digest, {})[lane] = Asked(now, expected_at)
        return digest

    def arrived(self, lane: LaneT, digest: Digest, now: float) -> bool:
        """The lane has brought the chunk, and it was right. False if another lane was first."""
        # Other lanes' copies are released when they come: until then they fill their connections.
        copies = self._asked.pop(digest, None)
        asked = None if copies is None else copies.get(lane)
        pace = self._paces.get(lane)
        is_usual = digest not in self._urgent
        if pace is not None:
            pace.brought(digest, now, is_usual=is_usual)
        if copies is None:
            return False
        self._lacking.pop(digest, None)
        if asked is not None and is_usual:
            self._learn(now - asked.at)
        return True

    def lacks(self, lane: LaneT, digest: Digest, now: float) -> None:
        """The lane has said that it does not have the chunk."""
        pace = self._paces.get(lane)
        if pace is not None:
            pace.lacked(digest, now)
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
        self._paces.pop(lane, None)
        for digest in [digest for digest, copies in self._asked.items() if lane in copies]:
            self._withdraw(lane, digest)

    def reconsider_at(self, now: float) -> float | None:
        """When `next` may have an answer that it does not have now, if nothing happens before.

        What is overdue now has been offered to whoever asks now, so it is no reason to ask again.
        """
        late_at = map(self._late_at, self._asked)
        return min((at for at in late_at if at > now), default=None)

    def _withdraw(self, lane: LaneT, digest: Digest) -> None:
        copies = self._asked[digest]
        copies.pop(lane, None)
        if not copies:
            del self._asked[digest]
            where = self._scarce if digest in self._lacking else self._plenty
            where[digest] = None

    def _holders(self, digest: Digest) -> int:
        lacking = self._lacking.get(digest, set())
        return sum(lane not in lacking for lane in self._paces)

    def _rarest_for(self, lane: LaneT) -> Digest | None:
        candidates = [digest for digest in self._scarce if lane not in self._lacking[digest]]
        return min(candidates, key=self._holders, default=None)

    def _copy(self, lane: LaneT, now: float) -> Digest | None:
        """The chunk that is expected last of those that this lane should be asked for as well."""
        wanted = [
            digest
            for digest, copies in self._asked.items()
            if lane not in copies
            and lane not in self._lacking.get(digest, ())
            and (self._late_at(digest) <= now or self._is_sooner(lane, copies.values(), now))
        ]
        return max(wanted, key=lambda each: self._urgency(each, now), default=None)

    def _is_sooner(self, lane: LaneT, copies: Collection[Asked], now: float) -> bool:
        """Whether this lane would bring the chunk much sooner than any of those asked for it."""
        pace = self._paces[lane]
        own_s = self._usual_s if pace.interval_s is None else pace.interval_s
        first_at = min(each.expected_at or -math.inf for each in copies)
        if own_s is None or len(copies) >= COPIES_MAX:
            return False
        own_s += max(0.0, pace.free_at - now)
        return first_at - now > SOONER_FACTOR * own_s

    def _urgency(self, digest: Digest, now: float) -> tuple[bool, float]:
        """What is overdue goes first, the longest asked for before the others; then what is
        expected last.
        """
        copies = self._asked[digest].values()
        if self._late_at(digest) <= now:
            return True, -min(each.at for each in copies)
        return False, min(each.expected_at or -math.inf for each in copies)

    def _late_at(self, digest: Digest) -> float:
        """When a chunk that was asked for becomes overdue."""
        patience_s = PATIENCE_MIN_S
        if digest not in self._urgent:
            usual_s = self._usual_s
            patience_s = (
                PATIENCE_UNKNOWN_S
                if usual_s is None
                else max(PATIENCE_MIN_S, PATIENCE_FACTOR * usual_s)
            )
        copies = self._asked[digest].values()
        further = max(0, len(copies) + 1 - COPIES_MAX)
        return max(each.at for each in copies) + patience_s * 2.0**further

    def _learn(self, taken_s: float) -> None:
        known = taken_s if self._usual_s is None else self._usual_s
        self._usual_s = known + _LEARNING_RATE * (taken_s - known)

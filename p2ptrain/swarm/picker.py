"""Which chunk to ask of which source next: a pure decision, told what happened and what time it is.

Rules, in this order:
1. A chunk that some sources lack goes first to a source that may have it, the rarest first.
2. Else any chunk that nobody has been asked for, in the order in which they are wanted.
3. Else a chunk that this source has lacked before, in case it has it now: the sources of those who
   start together are each other. The more often that was in vain, the longer it is left alone.
4. Else, at the end, a chunk that another source has been asked for and will bring much later than
   this one would, by what each has brought so far; or one that is overdue: whichever copy comes
   first counts.

How many requests a source may have open follows from its rate: what it brings in `AHEAD_S`, and one
more; a manifest, which is short, says nothing of it. So a fast source never runs dry, and a slow
one holds little that the others wait for at the end. One that has just said that it lacks a chunk
has one open until it brings something.

A source is taken to hold everything until it says that it lacks a chunk. What all of them have
lacked nobody has, for the end of the fetch is not put off by asking again. Sources are *lanes*: one
connection to one peer each, named by whatever the caller likes. The picker knows neither sockets
nor stores, and holds no lock: its caller does.

Chunks have numbers, and sets of them are integers with a bit for each. So what 64 sources lack of
100,000 chunks takes a megabyte, and a pick costs a few operations for each source, however many
chunks some sources lack.
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

AGAIN_S = 0.002
AGAIN_S_MAX = 10.0
"""After so many misses in a row of chunks that it had lacked before, a lane is not asked for such
for as many times the first, times the number of lanes, and for the second at most. A source that
never has any hears 900 such requests in an hour if there are four. Of sixteen joiners that begin
together each hears 40 misses a second (`tests/swarm/crowd.py`)."""

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


@dataclass(slots=True)
class Lacks:
    """What a lane has said that it lacks: `ever`, and `lately`, since it was asked for all there is
    once more. It outlives the lane, which may come back.
    """

    ever: int = 0
    lately: int = 0
    in_vain: int = 0
    """How often in a row it was asked again, and lacked it still."""
    again_at: float = -math.inf

    def note(self, chunk: int) -> None:
        self.ever |= chunk
        self.lately |= chunk

    def rest(self, chunk: int, now: float, lanes: int) -> None:
        """It has just said so of this one."""
        self.in_vain += bool(self.ever & chunk)
        self.again_at = now + min(AGAIN_S_MAX, AGAIN_S * lanes * (1 + self.in_vain))

    def has_some(self) -> None:
        """It has just brought one."""
        self.in_vain, self.again_at = 0, -math.inf


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
        self._paces: dict[LaneT, Pace] = {}
        self._lacks: dict[LaneT, Lacks] = {}
        self._digests: list[Digest] = []
        """By number, in the order in which they were wanted."""
        self._numbers: dict[Digest, int] = {}
        """Of those that are wanted still."""
        self._left = 0
        """The same as a set."""
        self._free = 0
        """Those of them that nobody is asked for."""
        self._asked: dict[Digest, dict[LaneT, Asked]] = {}
        self._urgent: set[Digest] = set()
        self._usual_s: float | None = None
        for lane in lanes:
            self.add(lane)

    def add(self, lane: LaneT) -> None:
        """One more source, or one that was dropped and is back."""
        self._paces.setdefault(lane, Pace())
        self._lacks.setdefault(lane, Lacks())

    def want(self, digests: Iterable[Digest], *, urgent: bool = False) -> None:
        """Add chunks. One that is wanted already is left as it is.

        An urgent one is short and holds up all the rest, as a manifest does: patience is at its
        minimum from the start.
        """
        digests = list(digests)
        if urgent:
            self._urgent.update(digests)
        first = len(self._digests)
        for digest in digests:
            if digest not in self._numbers:
                self._numbers[digest] = len(self._digests)
                self._digests.append(digest)
        new = (1 << len(self._digests)) - (1 << first)
        self._left |= new
        self._free |= new

    @property
    def lanes(self) -> Set[LaneT]:
        """Those that were not dropped."""
        return self._paces.keys()

    @property
    def done(self) -> bool:
        return not self._numbers

    @property
    def stuck(self) -> bool:
        return not self.done and not self._asked and len(self.hopeless) == self.left

    @property
    def left(self) -> int:
        """How many chunks are still wanted."""
        return len(self._numbers)

    @property
    def hopeless(self) -> Collection[Digest]:
        """The chunks that no lane that is left may have, and that are not on their way."""
        hopeless = self._free & self._lacked_by_all()
        return [digest for digest, number in self._numbers.items() if hopeless >> number & 1]

    def next(self, lane: LaneT, now: float) -> Digest | None:
        """The chunk to ask this lane for now, which then counts as asked for; None if none is."""
        pace = self._paces.get(lane)
        if pace is None or len(pace.open) >= pace.in_flight_max(self._in_flight_max):
            return None
        digest = self._unasked(lane, now) or self._copy(lane, now)
        if digest is not None:
            self._free &= ~self._bit(digest)
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
        self._lacks[lane].has_some()
        if copies is None:
            return False
        self._left ^= self._bit(digest)
        del self._numbers[digest]
        if asked is not None and is_usual:
            self._learn(now - asked.at)
        return True

    def lacks(self, lane: LaneT, digest: Digest, now: float) -> None:
        """The lane has said that it does not have the chunk."""
        pace = self._paces.get(lane)
        if pace is not None:
            pace.lacked(digest, now)
        if digest in self._asked:
            chunk = self._bit(digest)
            self._lacks[lane].rest(chunk, now, len(self._paces))
            self._lacks[lane].note(chunk)
            self._withdraw(lane, digest)

    def lacks_too(self, lane: LaneT, digest: Digest) -> None:
        """The lane will lack the chunk, as another connection to the same peer has said."""
        if digest in self._numbers:
            self._lacks[lane].note(self._bit(digest))

    def drop(self, lane: LaneT) -> None:
        """Nothing more comes from this lane; what it was asked for is asked of others."""
        self._paces.pop(lane, None)
        for digest in [digest for digest, copies in self._asked.items() if lane in copies]:
            self._withdraw(lane, digest)

    def reconsider_at(self, lane: LaneT, now: float) -> float | None:
        """When `next` may have an answer for this lane that it does not have now, if nothing
        happens before.

        What is overdue now has been offered to whoever asks now, so it is no reason to ask again.
        """
        late_at = map(self._late_at, self._asked_of_others(lane))
        again_at = [self._lacks[lane].again_at] if self._free else []
        return min((at for at in (*late_at, *again_at) if at > now), default=None)

    def _withdraw(self, lane: LaneT, digest: Digest) -> None:
        copies = self._asked[digest]
        copies.pop(lane, None)
        if not copies:
            del self._asked[digest]
            self._free |= self._bit(digest)

    def _bit(self, digest: Digest) -> int:
        return 1 << self._numbers[digest]

    def _lacked_by_all(self) -> int:
        """What each lane that is left has lacked, if only once; everything if there is none."""
        lacked = (1 << len(self._digests)) - 1
        for lane in self._paces:
            lacked &= self._lacks[lane].ever
        return lacked

    def _unasked(self, lane: LaneT, now: float) -> Digest | None:
        """The rarest that this lane may have and nobody is asked for."""
        lacks = self._lacks[lane]
        chunks = self._free & ~lacks.ever or self._again(lacks, now)
        if not chunks:
            return None
        # Of those that one lane lacks those that the next lacks as well, and so on.
        for other in self._paces:
            chunks = chunks & self._lacks[other].ever or chunks
        return self._digests[(chunks & -chunks).bit_length() - 1]

    def _again(self, lacks: Lacks, now: float) -> int:
        """What the lane may be asked for though it has lacked all that nobody is asked for."""
        if now < lacks.again_at or not self._is_coming():
            return 0
        if not self._free & ~lacks.lately:
            lacks.lately = 0
        return self._free & ~lacks.lately

    def _is_coming(self) -> bool:
        """Whether anything is left that somebody may have who has not lacked it."""
        return bool(self._left & ~self._lacked_by_all())

    def _copy(self, lane: LaneT, now: float) -> Digest | None:
        """The chunk that is expected last of those that this lane should be asked for as well."""
        wanted = [
            digest
            for digest in self._asked_of_others(lane)
            if self._late_at(digest) <= now
            or self._is_sooner(lane, self._asked[digest].values(), now)
        ]
        return max(wanted, key=lambda each: self._urgency(each, now), default=None)

    def _asked_of_others(self, lane: LaneT) -> list[Digest]:
        """What this lane may have as well."""
        lacked = self._lacks[lane].ever
        return [
            digest
            for digest, copies in self._asked.items()
            if lane not in copies and not lacked >> self._numbers[digest] & 1
        ]

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

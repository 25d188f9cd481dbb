"""Choose the next chunk to request from each source: a pure decision from events and times.

Rules, in this order:
1. Of the chunks that some sources lack, request the rarest one that this source may have.
2. Otherwise, request the first chunk, in the order given, that is not requested from any source.
3. Otherwise, request a chunk that this source lacked before. It may have the chunk by now, because
   fetchers that start together are each other's sources. The picker waits before such a request,
   and longer after each further miss.
4. Otherwise, at the end, request a second copy of a chunk that is overdue, or that this source
   would deliver much sooner than the source asked first, judging by their rates. The first copy to
   arrive counts.

The limit on a source's open requests depends on its rate: the number of chunks that it delivers in
`AHEAD_S`, plus one. Manifests are short and are not used to measure the rate. So a fast source
always has requests. A slow source has few, so the fetch does not wait long for it at the end. A
source that has just reported a missing chunk gets one request at a time until it delivers one.

A source is assumed to have everything until it reports that it lacks a chunk. A chunk that all
sources have lacked counts as unavailable. When only such chunks are left, none is requested again.
Each source is a *lane*, one connection to one peer, identified by any hashable value. The picker
knows nothing about sockets or stores. It is not thread-safe; its caller must hold a lock.

Chunks are numbered, and a set of chunks is an integer with one bit per chunk. So for a blob of
100,000 chunks, the sets of 64 sources take one megabyte, and choosing a chunk costs only a few
operations per source.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from p2ptrain.ids import Digest
from p2ptrain.swarm.patience import PATIENCE, Patience

LaneT = TypeVar("LaneT", bound=Hashable)

IN_FLIGHT_FIRST = 1
"""Maximum open requests of a lane whose rate is not known yet. Starting with one request costs a
single extra round trip. With more, a short blob would be requested only from the first sources,
even if they are slow. With two, a long fetch took 0.2 % less time, and a short one from unequal
sources a third more."""

IN_FLIGHT_MAX = 16
"""Maximum open requests of a lane: 16 × 4 MiB are enough for 10 Gbit/s over 50 ms."""

AHEAD_S = 1.0
"""A lane has open requests for about this many seconds of work, longer than any round trip."""

COPIES_MAX = 4
"""Number of lanes that are asked for the same overdue chunk at the usual time limit. The limit
doubles for each further lane. So colluding sources that withhold a chunk can only delay it, and
when the network stalls, chunks are not requested again and again."""

SOONER_FACTOR = 1.5
"""Request a copy if the open request is expected to take more than this many times as long as the
copy. A factor of 1.5 is larger than the measurement error."""

AGAIN_S = 0.002
AGAIN_S_MAX = 10.0
"""A lane is asked again for chunks that it lacked only after min(AGAIN_S_MAX, AGAIN_S × lanes ×
(1 + consecutive misses)) seconds. With four lanes, a source that never has any of the chunks gets
900 such requests in an hour. If sixteen joiners start together, each gets 40 misses a second
(`tests/swarm/crowd.py`)."""

_LEARNING_RATE = 0.25


@dataclass(slots=True)
class LaneRate:
    """The measured rate of one lane. `interval_s` is the time between chunks while it is busy."""

    open: dict[Digest, float] = field(default_factory=dict)
    """The time of each request that the lane has not answered yet."""
    interval_s: float | None = None
    heard_at: float = -math.inf
    """When the lane last answered a request."""
    free_at: float = -math.inf
    """When all open requests should have been answered."""
    doubtful: bool = False
    """Whether the lane's last answer was that it lacks the chunk."""

    def in_flight_max(self, limit: int) -> int:
        """Return how many open requests the lane may have, at most `limit`."""
        if self.doubtful:
            return 1
        if self.interval_s is None:
            return min(limit, IN_FLIGHT_FIRST)
        if self.interval_s * limit <= AHEAD_S:
            return limit
        return min(limit, 1 + math.ceil(AHEAD_S / self.interval_s))

    def asked(self, digest: Digest, now: float, usual_s: float | None) -> float | None:
        """Record a request. Return when its answer is expected, or None if that is unknown.
        `usual_s` is the interval to assume if the lane's own is unknown.
        """
        self.open[digest] = now
        interval_s = usual_s if self.interval_s is None else self.interval_s
        if interval_s is None:
            return None
        self.free_at = max(now, self.free_at) + interval_s
        return self.free_at

    def brought(self, digest: Digest, now: float, *, is_usual: bool = True) -> None:
        """Record a chunk, and measure how long it took, not counting the wait for earlier chunks.
        An unusual (short) chunk is not measured.
        """
        if is_usual:
            taken_s = now - max(self.open[digest], self.heard_at)
            self.interval_s = _averaged(self.interval_s, taken_s)
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
class MissingReports:
    """The chunks that a lane has reported missing, as sets. `ever` contains all of them. `lately`
    contains those reported since the lane was last asked again for all unrequested chunks. The
    record of a dropped lane is kept, because the lane may return.
    """

    ever: int = 0
    lately: int = 0
    in_vain: int = 0
    """Consecutive times that the lane was asked again and still lacked the chunk."""
    again_at: float = -math.inf

    def note(self, chunk: int) -> None:
        self.ever |= chunk
        self.lately |= chunk

    def missed(self, chunk: int, now: float, lanes: int) -> None:
        """Record a miss, and set when the lane may be asked again for chunks that it lacked."""
        self.in_vain += bool(self.ever & chunk)
        self.again_at = now + min(AGAIN_S_MAX, AGAIN_S * lanes * (1 + self.in_vain))
        self.note(chunk)

    def has_some(self) -> None:
        """Record that the lane has delivered a chunk."""
        self.in_vain, self.again_at = 0, -math.inf


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request to a lane: its time, and when the answer is expected, if known."""

    at: float
    expected_at: float | None


class Picker(Generic[LaneT]):
    """The chunks that are still wanted, and the lanes that may deliver them.

    Call `next` when a lane has room. Then call `arrived` or `lacks` for each chunk that it
    returned, or `drop` for the lane. The fetch is over when it is `done`, or `stuck`: no request is
    open, and no remaining lane may have a wanted chunk.
    """

    def __init__(
        self,
        lanes: Iterable[LaneT],
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        patience: Patience = PATIENCE,
    ) -> None:
        assert in_flight_max >= 1
        self._in_flight_max = in_flight_max
        self._patience = patience
        self._paces: dict[LaneT, LaneRate] = {}
        self._lacks: dict[LaneT, MissingReports] = {}
        self._digests: list[Digest] = []
        """All chunks by number, in the order in which they were wanted."""
        self._numbers: dict[Digest, int] = {}
        """The numbers of the chunks that are still wanted."""
        self._left = 0
        """The chunks that are still wanted, as a set."""
        self._free = 0
        """The wanted chunks that are not requested from any lane, as a set."""
        self._asked: dict[Digest, dict[LaneT, PendingRequest]] = {}
        self._urgent: set[Digest] = set()
        self._usual_s: float | None = None
        """The usual time from request to arrival, over all lanes; None before the first arrival."""
        for lane in lanes:
            self.add(lane)

    def add(self, lane: LaneT) -> None:
        """Add a source. It may have been dropped before."""
        self._paces.setdefault(lane, LaneRate())
        self._lacks.setdefault(lane, MissingReports())

    def want(self, digests: Iterable[Digest], *, urgent: bool = False) -> None:
        """Add chunks. Chunks that are already wanted are not changed.

        An urgent chunk, such as a manifest, is short, and other chunks become known only when it
        has arrived. So it counts as overdue after `Patience.least_s`.
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
        """The lanes that have not been dropped."""
        return self._paces.keys()

    @property
    def done(self) -> bool:
        return not self._numbers

    @property
    def stuck(self) -> bool:
        return not self.done and not self._asked and len(self.hopeless) == self.left

    @property
    def left(self) -> int:
        """Number of chunks that are still wanted."""
        return len(self._numbers)

    @property
    def hopeless(self) -> Collection[Digest]:
        """The chunks that are not requested and that no remaining lane may have."""
        hopeless = self._free & self._lacked_by_all()
        return [digest for digest, number in self._numbers.items() if hopeless >> number & 1]

    def next(self, lane: LaneT, now: float) -> Digest | None:
        """Return a chunk to request from this lane now, or None. The chunk is marked as
        requested.
        """
        pace = self._paces.get(lane)
        if pace is None or len(pace.open) >= pace.in_flight_max(self._in_flight_max):
            return None
        digest = self._unasked(lane, now) or self._copy(lane, now)
        if digest is not None:
            self._free &= ~self._bit(digest)
            expected_at = pace.asked(digest, now, self._usual_s)
            self._asked.setdefault(digest, {})[lane] = PendingRequest(now, expected_at)
        return digest

    def arrived(self, lane: LaneT, digest: Digest, now: float) -> bool:
        """Record that the lane has delivered the chunk. Return False if another lane was first."""
        # Other lanes' requests for this chunk stay open until their copies arrive, because the
        # copies occupy the connections until then.
        copies = self._asked.pop(digest, None)
        asked = None if copies is None else copies.get(lane)
        is_usual = digest not in self._urgent
        if (pace := self._paces.get(lane)) is not None:
            pace.brought(digest, now, is_usual=is_usual)
        self._lacks[lane].has_some()
        if copies is None:
            return False
        self._left ^= self._bit(digest)
        del self._numbers[digest]
        if asked is not None and is_usual:
            self._usual_s = _averaged(self._usual_s, now - asked.at)
        return True

    def lacks(self, lane: LaneT, digest: Digest, now: float) -> None:
        """Record that the lane does not have the chunk."""
        if (pace := self._paces.get(lane)) is not None:
            pace.lacked(digest, now)
        if digest in self._asked:
            self._lacks[lane].missed(self._bit(digest), now, len(self._paces))
            self._withdraw(lane, digest)

    def lacks_too(self, lane: LaneT, digest: Digest) -> None:
        """Record that the lane lacks the chunk, as reported by another connection to its peer."""
        if digest in self._numbers:
            self._lacks[lane].note(self._bit(digest))

    def drop(self, lane: LaneT) -> None:
        """Drop a lane. The chunks requested from it can then be requested from other lanes."""
        self._paces.pop(lane, None)
        for digest in [digest for digest, copies in self._asked.items() if lane in copies]:
            self._withdraw(lane, digest)

    def reconsider_at(self, lane: LaneT, now: float) -> float | None:
        """Return the next time at which `next` may return a chunk for this lane even if nothing
        else happens until then, or None. Chunks that are already overdue do not count, because
        `next` has offered them already.
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
        """Return the chunks that every remaining lane has lacked; all chunks if no lane remains."""
        lacked = (1 << len(self._digests)) - 1
        for lane in self._paces:
            lacked &= self._lacks[lane].ever
        return lacked

    def _unasked(self, lane: LaneT, now: float) -> Digest | None:
        """Return the rarest chunk that this lane may have and that has not been requested
        anywhere.
        """
        lacks = self._lacks[lane]
        chunks = self._free & ~lacks.ever or self._again(lacks, now)
        if not chunks:
            return None
        # Prefer chunks that another lane lacks; of these, chunks that the next lane lacks too; etc.
        for other in self._paces:
            chunks = chunks & self._lacks[other].ever or chunks
        return self._digests[(chunks & -chunks).bit_length() - 1]

    def _again(self, lacks: MissingReports, now: float) -> int:
        """Return the chunks to request again from a lane that lacked all unrequested chunks."""
        if now < lacks.again_at or not self._left & ~self._lacked_by_all():
            return 0  # it is too early, or no lane may have a chunk that is still wanted
        if not self._free & ~lacks.lately:
            lacks.lately = 0
        return self._free & ~lacks.lately

    def _copy(self, lane: LaneT, now: float) -> Digest | None:
        """Return the most urgent chunk to request from this lane as an additional copy."""
        wanted = [
            digest
            for digest in self._asked_of_others(lane)
            if self._late_at(digest) <= now
            or self._is_sooner(lane, self._asked[digest].values(), now)
        ]
        return max(wanted, key=lambda each: self._urgency(each, now), default=None)

    def _asked_of_others(self, lane: LaneT) -> list[Digest]:
        """Return the chunks requested from other lanes that this lane may have too."""
        lacked = self._lacks[lane].ever
        return [
            digest
            for digest, copies in self._asked.items()
            if lane not in copies and not lacked >> self._numbers[digest] & 1
        ]

    def _is_sooner(self, lane: LaneT, copies: Collection[PendingRequest], now: float) -> bool:
        """Return whether this lane would deliver the chunk much sooner than lanes already asked."""
        pace = self._paces[lane]
        own_s = self._usual_s if pace.interval_s is None else pace.interval_s
        first_at = min(each.expected_at or -math.inf for each in copies)
        if own_s is None or len(copies) >= COPIES_MAX:
            return False
        own_s += max(0.0, pace.free_at - now)
        return first_at - now > SOONER_FACTOR * own_s

    def _urgency(self, digest: Digest, now: float) -> tuple[bool, float]:
        """Return the sort key: overdue chunks first, the oldest request first among them; then the
        chunk that is expected last.
        """
        copies = self._asked[digest].values()
        if self._late_at(digest) <= now:
            return True, -min(each.at for each in copies)
        return False, min(each.expected_at or -math.inf for each in copies)

    def _late_at(self, digest: Digest) -> float:
        """Return when a requested chunk becomes overdue."""
        patience, usual_s = self._patience, self._usual_s
        if digest in self._urgent:
            patience_s = patience.least_s
        elif usual_s is None:
            patience_s = patience.unknown_s
        else:
            patience_s = max(patience.least_s, patience.factor * usual_s)
        copies = self._asked[digest].values()
        further = max(0, len(copies) + 1 - COPIES_MAX)
        return max(each.at for each in copies) + patience_s * 2.0**further


def _averaged(known_s: float | None, taken_s: float) -> float:
    """Return the moving average after a new value. `known_s` is None before the first value."""
    return taken_s if known_s is None else known_s + _LEARNING_RATE * (taken_s - known_s)

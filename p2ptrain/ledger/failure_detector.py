"""Decide which peers seem to be up: a peer that has been silent for too long is considered down.

        heard      silent for yellow_after intervals    for red_after intervals
    ────────► GREEN ─────────────────────────► YELLOW ─────────────────────────► RED
        ▲                 a reset connection: RED immediately                      │
        └────── heard again (after a reset: at least half an interval later) ──────┘

Silence is measured by this machine's monotonic clock, in multiples of the peer's usual interval
between heartbeats. The usual interval is the 90th percentile of the recent intervals, but at least
the agreed interval. If this process itself was stopped (by SIGSTOP, or a closed laptop lid), that
time is not counted, since silence during it says nothing about other peers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from p2ptrain.ids import PeerId

INTERVALS_KEPT = 32
"""Number of intervals kept for each peer, about a minute of heartbeats: enough for a 90th
percentile, and few enough to adapt to a change.
"""

HABIT_MAX = 4
"""Upper limit of a peer's usual interval, as a multiple of the agreed interval."""


class Colour(StrEnum):
    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"


@dataclass(slots=True)
class _Record:
    """The detector's record of one peer. Times and intervals are in seconds.

    - `last`: when the peer was last heard, plus the time for which this process was stopped since.
    - `shown`: the colour that `changes` last returned.
    - `allowed_s`: the peer's usual interval.
    - `hinted_at`: when a connection to the peer was reset, if it has not been heard since.
    - `intervals`, `ranked`: the recent intervals, in order of time and sorted by length.
    """

    last: float
    shown: Colour
    allowed_s: float
    hinted_at: float | None = None
    intervals: deque[float] = field(default_factory=deque)
    ranked: list[float] = field(default_factory=list)

    def add_interval(self, interval_s: float) -> None:
        """Add an interval, replacing the oldest if there are too many."""
        if len(self.intervals) == INTERVALS_KEPT:
            del self.ranked[bisect_left(self.ranked, self.intervals.popleft())]
        self.intervals.append(interval_s)
        insort(self.ranked, interval_s)


class Detector:
    """Keeps a colour for each peer: green (up), yellow (late) or red (down).

    Call `note_arrival` each time a peer is heard, and `changes` whenever `next_deadline` says.
    """

    def __init__(
        self, interval_s: float, *, yellow_after: float = 2.0, red_after: float = 4.0
    ) -> None:
        """`interval_s` is the agreed interval of heartbeats. `yellow_after` and `red_after` are the
        numbers of silent intervals after which a peer turns yellow and red.
        """
        assert interval_s > 0
        assert 1 <= yellow_after < red_after
        self.interval_s = interval_s
        self._yellow_after = yellow_after
        self._red_after = red_after
        self._stop_s = yellow_after * interval_s
        self._records: dict[PeerId, _Record] = {}
        self._looked_at: float | None = None

    def watch(self, peer: PeerId, now: float) -> None:
        """Expect heartbeats of `peer` from now on, even if it has never been heard."""
        self._give_lost_time(now)
        self._records.setdefault(peer, _Record(now, Colour.GREEN, self.interval_s))

    def forget(self, peer: PeerId) -> None:
        self._records.pop(peer, None)

    def note_arrival(self, peer: PeerId, now: float) -> None:
        """Record that a heartbeat (or any authenticated message) of `peer` arrived."""
        self._give_lost_time(now)
        record = self._records.get(peer)
        if record is None:
            record = self._records[peer] = _Record(now, Colour.GREEN, self.interval_s)
        if record.hinted_at is not None:
            if now < record.hinted_at + self.interval_s / 2:
                return  # It may be gossip from before the peer was lost.
            record.hinted_at = None
        elif now > record.last:
            record.add_interval(now - record.last)
            record.allowed_s = self._habit(record.ranked)
        record.last = now

    def hint_lost(self, peer: PeerId, now: float) -> None:
        """Record that a connection to `peer` was reset. The peer is red until it is heard again."""
        self._give_lost_time(now)
        record = self._records.get(peer)
        if record is not None:
            record.hinted_at = now

    def status(self, peer: PeerId, now: float) -> Colour:
        """Return the colour of `peer` now; RED if it is not known."""
        record = self._records.get(peer)
        return Colour.RED if record is None else self._judge(record, now)

    def changes(self, now: float) -> list[tuple[PeerId, Colour]]:
        """Return every peer whose colour has changed since the last call, with its new colour."""
        self._give_lost_time(now)
        changed = []
        for peer, record in self._records.items():
            colour = self._judge(record, now)
            if colour is not record.shown:
                record.shown = colour
                changed.append((peer, colour))
        return changed

    def next_deadline(self) -> float | None:
        """Return the time of the next call of `changes`: the time at which a colour may change, but
        early enough that the gap between calls does not look like a stop of this process.
        """
        if self._looked_at is None or not self._records:
            return None
        times = [self._looked_at + self._stop_s]
        for record in self._records.values():
            if record.shown is Colour.GREEN:
                times.append(self._yellow_at(record))
            elif record.shown is Colour.YELLOW:
                times.append(self._red_at(record))
        return min(times)

    def _judge(self, record: _Record, now: float) -> Colour:
        if record.hinted_at is not None or now >= self._red_at(record):
            return Colour.RED
        return Colour.YELLOW if now >= self._yellow_at(record) else Colour.GREEN

    def _yellow_at(self, record: _Record) -> float:
        return record.last + self._yellow_after * record.allowed_s

    def _red_at(self, record: _Record) -> float:
        return record.last + self._red_after * record.allowed_s

    def _habit(self, ranked: list[float]) -> float:
        usual = ranked[int(0.9 * (len(ranked) - 1))]
        return min(max(self.interval_s, usual), HABIT_MAX * self.interval_s)

    def _give_lost_time(self, now: float) -> None:
        """Do not count the time in which this process was stopped as silence. It was stopped if
        there was no call for `yellow_after` intervals, which is longer than any operation takes.
        """
        looked_at = self._looked_at
        if looked_at is not None and now > looked_at + self._stop_s:
            for record in self._records.values():
                record.last += now - looked_at - self._stop_s
        if looked_at is None or now > looked_at:
            self._looked_at = now

"""The known paths between members: their rates and delays.

Each node measures its own paths: from transfers in past reduces, from fetches, from the time that
connections take to open, and with short probes. Its heartbeats report a few paths at a time. Other
nodes believe a peer only about its own paths, and use the lower of the rates that the two ends
report. So a liar can make its paths look slow, but not faster than the other end has measured.

This module does not use a clock, sockets or the ledger; `now` is an argument where it matters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from p2ptrain.ids import PeerId
from p2ptrain.ring import Paths

RATE_MAX = 1 << 27
"""Maximum rate in kB/s: 1 Tbit/s. Higher claims are reduced to it."""

DELAY_MAX_MS = 60_000

BYTES_MIN = 16 << 20
"""Minimum bytes of a transfer that counts as a measurement. When a transfer seems to be complete,
up to 4 MiB may still be in socket buffers; in a short transfer, this would be a large error."""

TOLD_MAX = 8
"""Maximum number of paths in a heartbeat. Each path takes 62 bytes. Paths are sent only in full
heartbeats, not in small ones."""

HEARD_MAX = 1024
"""Maximum number of paths kept for one peer: one to each possible member of a roster."""

CHANGED_BY = 1.25
TURN_S = 10.0
"""A path is reported if its rate or delay changes by more than the factor CHANGED_BY. TURN_S is the
minimum time in seconds between two such reports, since each causes a full heartbeat."""

ROUND_TRIPS = 3
"""Number of round trips to open a connection: TCP, TLS, and the hello with its answer."""


@dataclass(frozen=True, slots=True)
class Path:
    """A path as one of its ends measured it: `rate` in kB/s, and `delay_ms` one way. 0 means
    unknown."""

    rate: int = 0
    delay_ms: int = 0

    def differs(self, other: Path) -> bool:
        return _differ(self.rate, other.rate) or _differ(self.delay_ms, other.delay_ms)


@dataclass(slots=True)
class PathTable:
    """The known paths. `mine` are this node's own paths. `heard` are paths that other peers
    reported, first by the peer that reported them. `page` are the paths in our current
    heartbeats."""

    me: PeerId
    mine: dict[PeerId, Path] = field(default_factory=dict)
    heard: dict[PeerId, dict[PeerId, Path]] = field(default_factory=dict)
    page: tuple[tuple[PeerId, Path], ...] = ()
    _told: dict[PeerId, Path] = field(default_factory=dict)
    _turned_s: float = 0.0

    # ── own measurements ─────────────────────────────────────────────────────────────────────────

    def moved(self, peer: PeerId, count_bytes: int, seconds: float) -> None:
        """Note that `count_bytes` were sent to `peer` in `seconds`. The new rate is the mean of
        this measurement and the known rate. A transfer of fewer than BYTES_MIN is ignored."""
        if count_bytes >= BYTES_MIN:
            self.found_rate(peer, count_bytes, seconds)

    def found_rate(self, peer: PeerId, count_bytes: int, seconds: float) -> None:
        known = self.mine.get(peer, Path())
        rate = _bounded(count_bytes / 1000 / max(seconds, 1e-6), RATE_MAX)
        self.mine[peer] = Path((known.rate + rate + 1) // 2 if known.rate else rate, known.delay_ms)

    def at_least(self, peer: PeerId, count_bytes: int, seconds: float) -> None:
        """Note that `count_bytes` came from `peer` in `seconds`, possibly along with other
        transfers. So the path is at least this fast. Fewer than BYTES_MIN are ignored."""
        known = self.mine.get(peer, Path())
        rate = _bounded(count_bytes / 1000 / max(seconds, 1e-6), RATE_MAX)
        if count_bytes >= BYTES_MIN and rate > known.rate:
            self.mine[peer] = Path(rate, known.delay_ms)

    def connected(self, peer: PeerId, seconds: float) -> None:
        """Note that it took `seconds` to open a connection to `peer`. The shortest time counts."""
        self.found_delay(peer, seconds / ROUND_TRIPS / 2)

    def found_delay(self, peer: PeerId, seconds: float) -> None:
        known = self.mine.get(peer, Path())
        least_ms = min(_bounded(1000 * seconds, DELAY_MAX_MS), known.delay_ms or DELAY_MAX_MS)
        self.mine[peer] = Path(known.rate, least_ms)

    # ── reports ──────────────────────────────────────────────────────────────────────────────────

    def has_news(self, now: float) -> bool:
        """Return whether a path has changed much since it was last reported, and TURN_S have passed
        since the last report."""
        return now >= self._turned_s + TURN_S and any(self._news())

    def choose_page(self, now: float) -> None:
        """Choose the paths to report next: those that changed much, then those whose last report is
        oldest."""
        self._turned_s = now
        order = dict.fromkeys([*self._news(), *(peer for peer in self._told if peer in self.mine)])
        chosen = list(order)[:TOLD_MAX]
        self.page = tuple((peer, self.mine[peer]) for peer in sorted(chosen))
        for peer in chosen:
            self._told.pop(peer, None)
            self._told[peer] = self.mine[peer]

    def _news(self) -> list[PeerId]:
        told = self._told
        return [peer for peer, path in self.mine.items() if path.differs(told.get(peer, Path()))]

    def note_report(
        self, peer: PeerId, page: Iterable[tuple[PeerId, Path]], of: Collection[PeerId]
    ) -> None:
        """Store what `peer` reports about its own paths to other members. `of` are the members."""
        if peer not in of:
            return
        heard = self.heard.setdefault(peer, {})
        for other, path in page:
            if other in of and other != peer and (other in heard or len(heard) < HEARD_MAX):
                heard[other] = Path(min(path.rate, RATE_MAX), min(path.delay_ms, DELAY_MAX_MS))

    def keep_only(self, members: Collection[PeerId]) -> None:
        """Forget all paths of peers that are not in `members`."""
        self.mine = {peer: path for peer, path in self.mine.items() if peer in members}
        self.heard = {
            peer: {other: path for other, path in heard.items() if other in members}
            for peer, heard in self.heard.items()
            if peer in members
        }
        self._told = {peer: path for peer, path in self._told.items() if peer in members}

    # ── results ──────────────────────────────────────────────────────────────────────────────────

    def fastest(self, peer: PeerId) -> float:
        """Return the highest rate that `peer` reports for one of its paths, in bytes per second: an
        estimate of its uplink. Return 0 if it reports none."""
        return 1000.0 * max((path.rate for path in self._of(peer).values()), default=0)

    def is_measured(self, a: PeerId, b: PeerId) -> bool:
        return self._path(a, b).rate > 0

    def between(
        self,
        peers: Sequence[PeerId],
        are_apart: Callable[[PeerId, PeerId], bool],
        *,
        unproven_rate: float = 0.0,
    ) -> Paths:
        """Return the known paths between `peers`. If neither peer of a pair can dial the other
        (`are_apart`) and their path is not measured, its rate in bytes per second is
        `unproven_rate`; with 0, the two do not have a path to each other."""
        rates: dict[tuple[PeerId, PeerId], float] = {}
        delays_s: dict[tuple[PeerId, PeerId], float] = {}
        for a, b in combinations(sorted(peers), 2):
            path = self._path(a, b)
            if not (path.rate and unproven_rate) and are_apart(a, b):
                rates[a, b] = unproven_rate
            elif path.rate:
                rates[a, b] = 1000.0 * path.rate
            if path.delay_ms:
                delays_s[a, b] = path.delay_ms / 1000
        return Paths(rates, delays_s)

    def _path(self, a: PeerId, b: PeerId) -> Path:
        """Return the lower rate and the lower delay of the two ends' measurements."""
        ends = [self._of(a).get(b, Path()), self._of(b).get(a, Path())]
        return Path(
            min((end.rate for end in ends if end.rate), default=0),
            min((end.delay_ms for end in ends if end.delay_ms), default=0),
        )

    def _of(self, peer: PeerId) -> Mapping[PeerId, Path]:
        return self.mine if peer == self.me else self.heard.get(peer, {})


def _bounded(value: float, most: int) -> int:
    """Round a measurement to an integer from 1 to `most`; 0 would mean unknown."""
    return round(min(max(value, 1.0), most))


def _differ(one: int, other: int) -> bool:
    return max(one, other) > CHANGED_BY * min(one, other)

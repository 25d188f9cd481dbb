"""A wait-for graph finds the peer at fault when nothing moves and every peer says that it waits.

A neighbour that owes us something and sends nothing exceeds the silence limit and is blamed. A
neighbour that says it waits is not blamed for silence: most such peers are honest, since all wait
for the one that has stopped. So each peer says whom it waits for. A WAITING frame names two peers,
one that waits and the one that it waits for: the last known link of the chain. A peer that waits
for a neighbour passes on that neighbour's link if it has received one, else its own. A peer that
could send but holds back (its uplink is capped) names itself twice. So all peers soon know the end
of the chain. If no payload comes for `stall_s` (STALL_SILENCES × silence_s, or longer where
segments are large):

    the neighbour names itself, or sends crumbs and says nothing     the neighbour is at fault
    a peer is said to wait for us, and we have nothing for it        that peer is at fault
    the chain ends with two other peers                              they have time to settle it;
                                                                     after that both are at fault

A neighbour that has begun a segment needs nobody else for the rest of it, and has to go on. It is
at fault if less than CRUMB_BYTES come in `segment_s`, even if it keeps saying that it waits.

A neighbour that names another link gets more time, but not without limit, because words move no
payload. If payload does come but too little of it, the deadline ends the wait. Then the peers that
have nothing to send themselves name the end of the chain, as far as it is known.

Limits: a liar may forge a link between two other peers, and make the second accuse the first. It
could as well tell all peers so in an ABORT. This module knows the plan, and nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ring.plan import Plan
from p2ptrain.ring.request import ReduceRequest
from p2ptrain.ring.schedules import route

STALL_SILENCES = 1.5
"""12 s by default. This is longer than the silence limit, so that a silent neighbour is named
first. It is short enough that a false excuse costs the others less than 15 s. Large segments have
more time."""

SLOWEST_BYTES_PER_S = 125_000
"""1 Mbit/s. Peers do not wait for slower links, neither for a whole reduce nor for a turn among
neighbours. The limits are twice the time that a transfer takes at this rate."""

REDUCE_S_MIN = 600.0
"""Smallest deadline, so that a small reduce survives a machine that is busy for minutes."""


def reduce_deadline_s(payload_bytes: int) -> float:
    """Return how long a reduce of so many bytes may take before its participants give it up."""
    return max(REDUCE_S_MIN, 2 * payload_bytes / SLOWEST_BYTES_PER_S)


NEWS_STALLS = 2
"""Limit, in stalls, on the extra time that a neighbour gets for naming another link. By then the
payload that honest peers wait for has passed through the slowest of them."""

OTHERS_STALLS = NEWS_STALLS + 2
"""Time, in stalls, that two other peers have to settle it. It is one more than a peer waits for a
neighbour that keeps naming new links. Here the same link may come again and again, because links
are passed on less often than a liar changes them."""

CRUMB_BYTES = 1 << 16
"""Fewer bytes than this, unless they complete a segment, are no progress.
1 Mbit/s needs half a second for them."""

SEGMENT_SLACK = 2
"""In the middle of a segment, a neighbour has this many times the time that CRUMB_BYTES take on a
line of SLOWEST_BYTES_PER_S shared by all its neighbours and lanes. In a ring of one lane these are
65,536 × 2 ÷ 125,000 = 1.05 s, so 2.1 s. The minimum is silence_s (8 s), so 66 kbit/s suffice."""


@dataclass(frozen=True, slots=True)
class Excuse:
    """Peer number `waiting` waits for peer number `awaited`. They are equal if it holds back."""

    waiting: int
    awaited: int


@dataclass(slots=True)
class _Neighbour:
    moved_at: float
    """Monotonic time when payload last came from it, or when it was our turn."""
    crumbs: int = 0
    """Bytes that have come since then."""
    midway: bool = False
    """Whether the rest of a segment is still to come, for which it needs nobody else."""
    begun_at: float | None = None
    """Monotonic time when a half-received frame that we read on was first seen, or None."""
    excuse: Excuse | None = None
    since: float = 0.0


class Excuses:
    """The waiting statements of one thread's neighbours. For one thread."""

    def __init__(self, request: ReduceRequest, plan: Plan, now: float) -> None:
        self._request = request
        self.stall_s = max(STALL_SILENCES * request.silence_s, 2 * _turn_s(plan))
        crumb = min(CRUMB_BYTES, _segment_bytes_max(plan))
        crumb_s = len(plan.lanes) * len(plan.neighbours) * crumb / SLOWEST_BYTES_PER_S
        self.segment_s = max(request.silence_s, SEGMENT_SLACK * crumb_s)
        self._neighbours = {number: _Neighbour(now) for number in plan.neighbours}

    def came(self, number: int, count: int, now: float, *, complete: bool) -> None:
        """Record that `count` bytes of a segment have come."""
        known = self._neighbours[number]
        known.crumbs += count
        known.midway = not complete
        if complete or known.crumbs >= CRUMB_BYTES:
            self.moved(number, now)

    def moved(self, number: int, now: float) -> None:
        """Record that payload has come, or that we ourselves are not reading."""
        known = self._neighbours[number]
        known.moved_at, known.crumbs = now, 0

    def under_way(self, number: int, now: float, *, begun: bool) -> None:
        """Record whether part of a frame has come from this neighbour and we read on."""
        known = self._neighbours[number]
        if not begun:
            known.begun_at = None
        elif known.begun_at is None:
            known.begun_at = now

    def trickling(self, now: float) -> tuple[int, str] | None:
        """Return the neighbour that has begun a frame and does not go on with it, and the reason in
        words.

        Only its own line can hold it up, because it had the whole segment before it began.
        """
        for number, known in self._neighbours.items():
            if known.begun_at is not None:
                still_s = now - max(known.begun_at, known.moved_at)
                if still_s >= self.segment_s:
                    return number, f"it sent {known.crumbs} bytes in {still_s:.3g} s amid a segment"
        return None

    def is_amid_a_segment(self, number: int, now: float) -> bool:
        """Return whether the neighbour has begun a frame and has not gone on with it for half of
        the time after which it is `trickling`.
        """
        known = self._neighbours[number]
        begun_at = known.begun_at
        return begun_at is not None and now - max(begun_at, known.moved_at) >= self.segment_s / 2

    def heard(self, number: int, excuse: Excuse, now: float) -> bool:
        """Record what a neighbour said. Return whether it is new.

        Raises:
            RemoteProtocolError: the plan has no such link.
        """
        if not self._planned(excuse):
            raise RemoteProtocolError(
                f"it says that peer {excuse.waiting} waits for peer {excuse.awaited}, "
                "which the plan does not have"
            )
        known = self._neighbours[number]
        if known.excuse == excuse:
            return False
        known.excuse, known.since = excuse, now
        return True

    def to_say(self, owing: Collection[int], *, holds_back: bool) -> Excuse:
        """Return what we say. `owing` are the neighbours without which we cannot go on;
        `holds_back` says whether we have something that could go.
        """
        me = self._request.me
        if holds_back or not owing:
            return Excuse(me, me)
        slowest, known = self._slowest(owing)
        return Excuse(me, slowest) if known.midway else self._link(known) or Excuse(me, slowest)

    def late(self, owing: Collection[int]) -> int | None:
        """Return the peer at the end of the chain if it is known; `owing` as for `to_say`."""
        if not owing:
            return None
        slowest, known = self._slowest(owing)
        if known.midway:
            return slowest
        said = self._link(known)
        return None if said is None else said.awaited

    def at_fault(
        self, owing: Mapping[int, int], held_for: Collection[int], now: float
    ) -> tuple[tuple[int, ...], str]:
        """Return the numbers of the peers at fault and the reason in words; nobody while there is
        hope.

        `owing` counts, by neighbour, the segments still to come. `held_for` are the neighbours for
        which we have something, and which accept it.
        """
        for number, known in self._neighbours.items():
            news_until = known.moved_at + NEWS_STALLS * self.stall_s
            still_s = now - max(known.moved_at, min(known.since, news_until))
            if owing[number] and still_s >= self.stall_s:
                found = self._judged(number, held_for, still_s, now - known.moved_at)
                if found[0]:
                    return found
        return (), ""

    def _judged(
        self, number: int, held_for: Collection[int], still_s: float, unmoved_s: float
    ) -> tuple[tuple[int, ...], str]:
        me = self._request.me
        excuse = self._neighbours[number].excuse or Excuse(number, number)
        if excuse.waiting == excuse.awaited == number:
            return (number,), f"it holds back what it owes for {still_s:.3g} s"
        if excuse.awaited == me and excuse.waiting != me:
            lies = excuse.waiting not in held_for
            return ((excuse.waiting,) if lies else ()), "it waits for what it has been sent"
        if unmoved_s < OTHERS_STALLS * self.stall_s or me in (excuse.waiting, excuse.awaited):
            return (), ""
        both = tuple(dict.fromkeys((excuse.waiting, excuse.awaited)))
        return both, f"one is said to wait for the other for {unmoved_s:.3g} s"

    def _slowest(self, owing: Collection[int]) -> tuple[int, _Neighbour]:
        slowest = min(owing, key=lambda number: (self._neighbours[number].moved_at, number))
        return slowest, self._neighbours[slowest]

    def _link(self, known: _Neighbour) -> Excuse | None:
        """Return the link that it reported, if it concerns only other peers."""
        me, said = self._request.me, known.excuse
        return None if said is None or me in (said.waiting, said.awaited) else said

    def _planned(self, excuse: Excuse) -> bool:
        schedule, peers = self._request.schedule, len(self._request.peers)
        if max(excuse.waiting, excuse.awaited) >= peers:
            return False
        if excuse.waiting == excuse.awaited:
            return True
        routes = (route(schedule, peers, excuse.waiting, part) for part in range(peers))
        return any(excuse.awaited in (*each.sums_from, each.mean_from) for each in routes)


def _turn_s(plan: Plan) -> float:
    """Return how long the slowest acceptable sender takes to send a segment to each of its
    neighbours. It is assumed to have as many neighbours as we have.
    """
    turns = len(plan.lanes) * len(plan.neighbours)
    return turns * _segment_bytes_max(plan) / SLOWEST_BYTES_PER_S


def _segment_bytes_max(plan: Plan) -> int:
    sizes = (segment.bytes for runs in plan.lanes for run in runs for segment in run)
    return max(sizes, default=0)

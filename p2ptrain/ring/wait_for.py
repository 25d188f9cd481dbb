"""A wait-for graph that finds the peer at fault when all peers are waiting for each other.

A neighbour that has to send us segments but is silent is blamed after the silence limit. A
neighbour that says it is waiting is not blamed for silence: if one peer stops, all other peers
wait, and most of them are honest. So each peer says whom it waits for. A WAITING frame names two
peers: a peer that waits, and the peer that it waits for. Such a pair is a *link*. If A waits for B,
and B waits for C, the links form a chain, and the peer at its end holds up all the others.

A peer that waits for a neighbour forwards this neighbour's link if it has received one, otherwise
it sends its own. So all peers soon know the last link of the chain. A peer that has something to
send but holds it back, because its uplink is rate-limited, names itself twice.

If a neighbour's payload does not arrive for `stall_s` (STALL_SILENCES × silence_s, or longer if
segments are large), its last link decides:

    the neighbour names itself, or has not sent a link               the neighbour is at fault
    a peer is said to wait for us, but we have nothing for it        that peer is at fault
    two other peers are named                                        they get time to resolve it;
                                                                     then both are at fault

A neighbour that has begun to send a segment already has all of it, so it must continue. The
neighbour is at fault if fewer than CRUMB_BYTES arrive within `segment_s`, even if it keeps saying
that it is waiting.

A neighbour that names a new link gets more time, but only up to a limit, because it could name new
links for ever. If payload keeps arriving but too slowly, the deadline ends the reduce. Then each
peer that has nothing to send suspects the peer at the end of the chain, as far as it knows it.

Limits: a liar can forge a link from one peer to another, which makes the second peer accuse the
first. The liar gains nothing by that, because it can also accuse the first peer itself, in an
ABORT. This module knows the plan, but not sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ring.plan import ReducePlan
from p2ptrain.ring.request import ReduceRequest
from p2ptrain.ring.schedules import route

STALL_SILENCES = 1.5
"""`stall_s` as a multiple of `silence_s`: 12 s by default. This is longer than the silence limit,
so that a silent neighbour is blamed first. It is short enough that a false statement costs the
other peers less than 15 s. Large segments get more time."""

SLOWEST_BYTES_PER_S = 125_000
"""Bytes per second of the slowest acceptable link: 1 Mbit/s. Peers do not wait for slower links. A
whole reduce, and one turn among the neighbours, may take twice the time that they need at this
rate."""

REDUCE_S_MIN = 600.0
"""Minimum deadline in seconds, so that a small reduce survives a machine that is busy for
minutes."""


def reduce_deadline_s(payload_bytes: int) -> float:
    """Return how long a reduce of `payload_bytes` may take before its participants abort it."""
    return max(REDUCE_S_MIN, 2 * payload_bytes / SLOWEST_BYTES_PER_S)


NEWS_STALLS = 2
"""Maximum extra time, in multiples of `stall_s`, for a neighbour that names new links. Within this
time, the payload that honest peers are waiting for has passed through the slowest of them."""

OTHERS_STALLS = NEWS_STALLS + 2
"""Time since the last payload, in multiples of `stall_s`, that two other peers have to resolve a
stall. This is one `stall_s` more than a peer waits for a neighbour that keeps naming new links. New
links do not extend this time. Links are forwarded less often than a liar can change them, so a peer
may see the same link again and again although the liar names new ones."""

CRUMB_BYTES = 1 << 16
"""Fewer bytes than this do not count as progress, unless they complete a segment. At 1 Mbit/s, this
many bytes take half a second."""

SEGMENT_SLACK = 2
"""Within a segment, a neighbour gets this many times the time that CRUMB_BYTES take on a line of
SLOWEST_BYTES_PER_S that is shared by all its neighbours and lanes. In a ring with one lane, which
has 2 neighbours, this is 2 × 65,536 bytes × 2 neighbours ÷ 125,000 bytes per second = 2.1 s. The
neighbour always gets at least `silence_s` (8 s), so 66 kbit/s are enough."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A link: peer number `waiting` waits for peer number `awaited`. The two are equal if the peer
    holds back a segment that is ready.
    """

    waiting: int
    awaited: int


@dataclass(slots=True)
class _Neighbour:
    moved_at: float
    """Monotonic time when the neighbour last made progress, or when we last caused the delay."""
    crumbs: int = 0
    """Bytes received since `moved_at`."""
    midway: bool = False
    """Whether the neighbour has sent only part of a segment."""
    begun_at: float | None = None
    """Monotonic time when we first noticed a partly received frame; None if there is none."""
    wait: Wait | None = None
    """The last link that the neighbour named."""
    since: float = 0.0
    """Monotonic time when the neighbour first named this link."""


class WaitForGraph:
    """The WAITING statements of one lane's neighbours. Used by one thread."""

    def __init__(self, request: ReduceRequest, plan: ReducePlan, now: float) -> None:
        self._request = request
        sizes = (segment.bytes for runs in plan.lanes for run in runs for segment in run)
        segment_bytes = max(sizes, default=0)
        # The slowest acceptable sender may have as many neighbours as we have. Then it sends one
        # byte to each of them, on each lane, in this many seconds.
        byte_s = len(plan.lanes) * len(plan.neighbours) / SLOWEST_BYTES_PER_S
        self.stall_s = max(STALL_SILENCES * request.silence_s, 2 * segment_bytes * byte_s)
        crumb_s = min(CRUMB_BYTES, segment_bytes) * byte_s
        self.segment_s = max(request.silence_s, SEGMENT_SLACK * crumb_s)
        self._neighbours = {number: _Neighbour(now) for number in plan.neighbours}

    def note_bytes(self, number: int, count: int, now: float, *, complete: bool) -> None:
        """Record that `count` bytes of a segment were received."""
        known = self._neighbours[number]
        known.crumbs += count
        known.midway = not complete
        if complete or known.crumbs >= CRUMB_BYTES:
            self.note_progress(number, now)

    def note_progress(self, number: int, now: float) -> None:
        """Record that the neighbour made progress, or that we caused the delay: this process was
        stopped, or we are leaving the neighbour's data unread.
        """
        known = self._neighbours[number]
        known.moved_at, known.crumbs = now, 0

    def note_frame(self, number: int, now: float, *, begun: bool) -> None:
        """Record whether part of a frame was received from this neighbour and we are reading the
        rest.
        """
        known = self._neighbours[number]
        if not begun:
            known.begun_at = None
        elif known.begun_at is None:
            known.begun_at = now

    def trickling(self, now: float) -> tuple[int, str] | None:
        """Return the number of a neighbour that has begun a frame but sends the rest too slowly,
        and the reason as text.

        Only the neighbour's own uplink can delay the rest, because the neighbour had the whole
        segment before it began to send.
        """
        for number, known in self._neighbours.items():
            if (still_s := _still_s(known, now)) >= self.segment_s:
                return number, f"it sent only {known.crumbs} bytes of a segment in {still_s:.3g} s"
        return None

    def is_amid_a_segment(self, number: int, now: float) -> bool:
        """Return whether the neighbour has begun a frame, and half of the time has passed after
        which it counts as `trickling`.
        """
        return _still_s(self._neighbours[number], now) >= self.segment_s / 2

    def note_wait(self, number: int, wait: Wait, now: float) -> bool:
        """Record a neighbour's WAITING statement. Return whether it is new.

        Raises:
            RemoteProtocolError: the link is not in the plan.
        """
        if not self._planned(wait):
            raise RemoteProtocolError(
                f"it claims that peer {wait.waiting} waits for peer {wait.awaited}, which "
                "does not fit the plan"
            )
        known = self._neighbours[number]
        if known.wait == wait:
            return False
        known.wait, known.since = wait, now
        return True

    def own_wait(self, owing: Collection[int], *, holds_back: bool) -> Wait:
        """Return the link to send in our own WAITING frame. `owing` are the neighbours that we need
        data from to continue; `holds_back` is True if we have something to send.
        """
        me = self._request.me
        if holds_back or not owing:
            return Wait(me, me)
        return self._last_link(owing) or Wait(me, self._slowest(owing))

    def late(self, owing: Collection[int]) -> int | None:
        """Return the number of the peer at the end of the chain, if known. `owing` are the
        neighbours that we need data from to continue.
        """
        link = self._last_link(owing) if owing else None
        return None if link is None else link.awaited

    def at_fault(
        self, owing: Mapping[int, int], held_for: Collection[int], now: float
    ) -> tuple[tuple[int, ...], str]:
        """Return the numbers of the peers at fault, and the reason as text. Nobody is at fault
        while the time limits have not passed.

        `owing` counts the segments still to be received, by neighbour. `held_for` are the
        neighbours that we have data for and that accept it.
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
        wait = self._neighbours[number].wait or Wait(number, number)
        if wait.waiting == wait.awaited == number:
            return (number,), f"it has not sent its segments for {still_s:.3g} s"
        if wait.awaited == me and wait.waiting != me:
            lies = wait.waiting not in held_for
            return ((wait.waiting,) if lies else ()), (
                "it claims to wait for segments that it has received"
            )
        if unmoved_s < OTHERS_STALLS * self.stall_s or me in (wait.waiting, wait.awaited):
            return (), ""
        both = tuple(dict.fromkeys((wait.waiting, wait.awaited)))
        return both, f"others reported that one waited for the other for {unmoved_s:.3g} s"

    def _slowest(self, owing: Collection[int]) -> int:
        return min(owing, key=lambda number: (self._neighbours[number].moved_at, number))

    def _last_link(self, owing: Collection[int]) -> Wait | None:
        """Return the last known link of the chain that begins at the slowest neighbour; None if
        that neighbour has not named a link, or named a link that this peer is part of.
        """
        me, slowest = self._request.me, self._slowest(owing)
        known = self._neighbours[slowest]
        if known.midway:
            return Wait(me, slowest)
        said = known.wait
        return None if said is None or me in (said.waiting, said.awaited) else said

    def _planned(self, wait: Wait) -> bool:
        schedule, peers = self._request.schedule, len(self._request.peers)
        if max(wait.waiting, wait.awaited) >= peers:
            return False
        if wait.waiting == wait.awaited:
            return True
        routes = (route(schedule, peers, wait.waiting, part) for part in range(peers))
        return any(wait.awaited in (*each.sums_from, each.mean_from) for each in routes)


def _still_s(known: _Neighbour, now: float) -> float:
    """Return the seconds without progress in a neighbour's unfinished frame; 0 if there is none."""
    return 0.0 if known.begun_at is None else now - max(known.begun_at, known.moved_at)

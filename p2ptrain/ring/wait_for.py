"""Who is at fault when nothing moves though everybody says that it waits.

A neighbour that owes us something and sends nothing is soon silent, and named. One that says it
waits is not: most who say so are honest, since all wait for the one that stands still. So who waits
says for whom: WAITING names two peers, one that waits and the one that it waits for, who are the
last known link of the chain of waiting. A peer that waits for a neighbour passes on that
neighbour's link, if it has said one, else its own; one that could send but holds back (its uplink
is capped) names itself twice. So all soon hear the end of the chain, and where no payload comes for
`stall_s` (STALL_SILENCES × silence_s, or longer where segments are large):

    the neighbour names itself, or sends crumbs and says nothing     it is at fault
    somebody is said to wait for us, and we have nothing for it      that one is
    the chain ends with two others                                   theirs to settle while they
                                                                     can, and then both are

A neighbour that has begun a segment waits for nobody with the rest of it, and has to go on: it is
at fault if less than CRUMB_BYTES come in `segment_s`, though it says all the time that it waits.

Whoever says something else gets time anew, but not for ever: words that change move nothing. Where
payload does come, but too little of it, the deadline ends the wait: then those that have nothing to
send themselves name who is at the end of the chain, so far as that is known.

What this cannot do: a liar may forge a link between two others, and have the second accuse the
first. It can as well tell everybody so in an ABORT. It knows the plan, and nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ring.plan import Plan
from p2ptrain.ring.request import ReduceRequest
from p2ptrain.ring.schedules import route

STALL_SILENCES = 1.5
"""12 s by default: longer than silence, so that a neighbour that is merely silent is named first,
and short enough that an excuse costs the others less than 15 s. Large segments have more time."""

SLOWEST_BYTES_PER_S = 125_000
"""1 Mbit/s: over slower links nobody waits, neither for a reduce nor for a turn among neighbours.
What takes so long at that rate is given twice as long."""

REDUCE_S_MIN = 600.0
"""No reduce is given less, so that a small one survives a machine that is busy for minutes."""


def reduce_deadline_s(payload_bytes: int) -> float:
    """How long a reduce of so many bytes may take before its participants give it up."""
    return max(REDUCE_S_MIN, 2 * payload_bytes / SLOWEST_BYTES_PER_S)


NEWS_STALLS = 2
"""So many times longer a neighbour is waited for because it says something else. Payload that
honest peers wait for has gone through the slowest of them by then."""

OTHERS_STALLS = NEWS_STALLS + 2
"""So long two others have to settle it: one more than whoever hears ever new excuses waits. We may
hear one of these again and again: they are passed on less often than a liar changes them."""

CRUMB_BYTES = 1 << 16
"""Less than this, or than the rest of a segment, is no progress. That rate takes half a second."""

SEGMENT_SLACK = 2
"""A neighbour in the middle of a segment has this many times longer for CRUMB_BYTES than a line of
SLOWEST_BYTES_PER_S needs that all its neighbours and lanes share: 65,536 × 2 ÷ 125,000 = 1.05 s, so
2.1 s in a ring of one lane. It has silence_s at least, which is 8 s: 66 kbit/s are fast enough."""


@dataclass(frozen=True, slots=True)
class Excuse:
    """Peer number `waiting` waits for peer number `awaited`; equal if it holds back by itself."""

    waiting: int
    awaited: int


@dataclass(slots=True)
class _Neighbour:
    moved_at: float
    """When payload came from it last, or it was our turn."""
    crumbs: int = 0
    """Bytes that have come since."""
    midway: bool = False
    """Whether the rest of a segment is to come: it waits for nobody with that."""
    begun_at: float | None = None
    """When a frame was first seen half received that we read on; None while there is none."""
    excuse: Excuse | None = None
    since: float = 0.0


class Excuses:
    """What one thread's neighbours say they wait for. For one thread."""

    def __init__(self, request: ReduceRequest, plan: Plan, now: float) -> None:
        self._request = request
        self.stall_s = max(STALL_SILENCES * request.silence_s, 2 * _turn_s(plan))
        crumb = min(CRUMB_BYTES, _segment_bytes_max(plan))
        crumb_s = len(plan.lanes) * len(plan.neighbours) * crumb / SLOWEST_BYTES_PER_S
        self.segment_s = max(request.silence_s, SEGMENT_SLACK * crumb_s)
        self._neighbours = {number: _Neighbour(now) for number in plan.neighbours}

    def came(self, number: int, count: int, now: float, *, complete: bool) -> None:
        """So much of a segment has come, or the rest of it."""
        known = self._neighbours[number]
        known.crumbs += count
        known.midway = not complete
        if complete or known.crumbs >= CRUMB_BYTES:
            self.moved(number, now)

    def moved(self, number: int, now: float) -> None:
        """Payload has come, or it is we who do not read on."""
        known = self._neighbours[number]
        known.moved_at, known.crumbs = now, 0

    def under_way(self, number: int, now: float, *, begun: bool) -> None:
        """Say whether part of a frame has come from this neighbour, and we read on."""
        known = self._neighbours[number]
        if not begun:
            known.begun_at = None
        elif known.begun_at is None:
            known.begun_at = now

    def trickling(self, now: float) -> tuple[int, str] | None:
        """Return the neighbour that has begun a frame and does not go on with it, and why in words.

        Its own line is all that can hold it up: it had the whole segment before it began.
        """
        for number, known in self._neighbours.items():
            if known.begun_at is not None:
                still_s = now - max(known.begun_at, known.moved_at)
                if still_s >= self.segment_s:
                    return number, f"it sent {known.crumbs} bytes in {still_s:.3g} s amid a segment"
        return None

    def heard(self, number: int, excuse: Excuse, now: float) -> bool:
        """A neighbour has said it. Whether that is news.

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
        """What we say: `owing` are the neighbours without which we cannot go on, and `holds_back`
        is whether we have something that could go.
        """
        me = self._request.me
        if holds_back or not owing:
            return Excuse(me, me)
        slowest, known = self._slowest(owing)
        return Excuse(me, slowest) if known.midway else self._link(known) or Excuse(me, slowest)

    def late(self, owing: Collection[int]) -> int | None:
        """Who is at the end of the chain, if that is known; `owing` as for `to_say`."""
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
        """The numbers of those at fault and why, in words; nobody while there is hope.

        By neighbour, `owing` counts what is to come; `held_for` are those that we have something
        for, and that take it.
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
        """What it has said of others than us."""
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
    """How long the slowest sender that is worth waiting for takes for a segment to each of its
    neighbours, which are about as many as ours.
    """
    turns = len(plan.lanes) * len(plan.neighbours)
    return turns * _segment_bytes_max(plan) / SLOWEST_BYTES_PER_S


def _segment_bytes_max(plan: Plan) -> int:
    sizes = (segment.bytes for runs in plan.lanes for run in runs for segment in run)
    return max(sizes, default=0)

"""The work of one lane: the bytes that may come now, their places, and what may then leave.

It follows the plan and does the arithmetic, and knows nothing of sockets or time. The caller moves
the bytes. Frames that do not fit the plan are refused here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ring.arithmetic import Accumulator
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.plan import ACCUMULATORS, Segment
from p2ptrain.ring.schedules import Route, accumulates
from p2ptrain.ring.wire import Header, Kind


@dataclass(frozen=True, slots=True, order=True)
class OutgoingSegment:
    """A segment that may leave. In a heap, the segment with the longest way ahead comes first."""

    hop: int
    index: int
    part: int
    to: int
    kind: Kind = field(compare=False)
    segment: Segment = field(compare=False)


@dataclass(frozen=True, slots=True)
class IncomingSegment:
    """A segment that is about to come from neighbour number `sender`."""

    sender: int
    kind: Kind
    segment: Segment


class LaneProgress:
    """One peer's share of one lane. For one thread, but any thread may read the counts."""

    def __init__(self, attempt: Attempt, number: int) -> None:
        self._arithmetic = attempt.arithmetic
        self._peers = attempt.request.peers
        self._routes = attempt.plan.routes
        self._runs = attempt.plan.lanes[number]
        self._accumulators: dict[bool, Accumulator] = {}
        """By `owned`: one for the own part, one for parts collected for others. Made when
        needed."""
        self._in_order = accumulates(attempt.request.schedule)
        """Whether sums leave in the order of their index, because their receiver needs that."""
        self._sums_come = [0 for _ in self._runs]
        self._claimed: set[tuple[Kind, int, int, int]] = set()
        """Kind, part, index and sender of each announced segment. Each may come only once."""
        self._sums_gone: set[tuple[int, int]] = set()
        """Part and index of the sums that have left."""
        self._sums_left = sum(
            len(run) * len(route.sums_from)
            for route, run in zip(self._routes, self._runs, strict=True)
        )
        self.left_to_come: dict[int, int] = dict.fromkeys(attempt.plan.neighbours, 0)
        self.left_to_go: dict[int, int] = dict.fromkeys(attempt.plan.neighbours, 0)
        """Segments still to be sent, by neighbour."""
        self.left_to_pass_on: dict[int, int] = dict.fromkeys(attempt.plan.neighbours, 0)
        """Segments still to come on which another send depends, by neighbour."""
        for route, run in zip(self._routes, self._runs, strict=True):
            self._count(route, len(run))
        self._left = sum(self.left_to_come.values()) + sum(self.left_to_go.values())

    @property
    def finished(self) -> bool:
        return self._left == 0

    @property
    def scattered(self) -> bool:
        """Whether all sums have come, so that only means are still to come."""
        return self._sums_left == 0

    def at_start(self) -> list[OutgoingSegment]:
        """Return the own contributions to which nobody adds before they leave."""
        return [
            self._sum(route, segment)
            for route, run in zip(self._routes, self._runs, strict=True)
            for segment in run
            if not route.sums_from and not route.owned
        ]

    def claim(self, header: Header, sender: int) -> IncomingSegment:
        """Return the segment that `header` announces.

        Raises:
            RemoteProtocolError: it is not due from `sender`.
        """
        part, index = header.part, header.index
        if part >= len(self._routes) or not self._comes_from(header.kind, part, sender):
            raise RemoteProtocolError(
                f"there is no {header.kind.name.lower()} of part {part} for this node"
            )
        run = self._runs[part]
        claim = (header.kind, part, index, sender)
        if index >= len(run) or claim in self._claimed:
            raise RemoteProtocolError(f"segment {index} of part {part} is out of order")
        segment = run[index]
        if header.length != segment.bytes:
            raise RemoteProtocolError(
                f"a frame has {header.length} bytes; {segment.bytes} are expected"
            )
        if header.kind is Kind.MEAN and (part, index) not in self._sums_gone:
            raise RemoteProtocolError("a mean came before the sum that it depends on")
        self._claimed.add(claim)
        return IncomingSegment(sender, header.kind, segment)

    def place(self, arrival: IncomingSegment) -> memoryview | None:
        """Return the place for the bytes; None if other segments must come first."""
        segment, route = arrival.segment, self._routes[arrival.segment.part]
        if arrival.kind is Kind.MEAN:
            return self._arithmetic.place(segment)
        if len(route.sums_from) == 1:
            early = self._in_order and self._sums_come[segment.part] != segment.index
            return None if early else self._arithmetic.place(segment)
        accumulator = self._accumulator(route.owned)
        if accumulator.due(segment) and route.sums_from[accumulator.added] == arrival.sender:
            return accumulator.place(segment)
        return None

    def held_up_by(self, arrival: IncomingSegment) -> int:
        """Return the peer that has to send before `arrival` gets a place. It is the sender of
        `arrival` itself if that sender has started with a later segment.
        """
        route = self._routes[arrival.segment.part]
        if len(route.sums_from) == 1:
            return arrival.sender
        owned, accumulator = route.owned, self._accumulator(route.owned)
        return next(
            route.sums_from[accumulator.added]
            for route, run in zip(self._routes, self._runs, strict=True)
            if len(route.sums_from) > 1 and route.owned == owned and any(map(accumulator.due, run))
        )

    def arrived(self, arrival: IncomingSegment) -> list[OutgoingSegment]:
        """The bytes are in their place. Process them, and return what may leave now.

        Raises Blamed.
        """
        segment, sender = arrival.segment, self._peers[arrival.sender]
        route = self._routes[segment.part]
        self._sums_left -= arrival.kind is Kind.SUM
        self.left_to_come[arrival.sender] -= 1
        self.left_to_pass_on[arrival.sender] -= bool(arrival.kind is Kind.SUM or route.means_to)
        self._left -= 1
        if arrival.kind is Kind.MEAN:
            self._arithmetic.accept(segment, sender)
        elif len(route.sums_from) == 1:
            self._sums_come[segment.part] += 1
            self._arithmetic.add(segment, sender, last=route.owned)
        else:
            accumulator = self._accumulator(route.owned)
            if arrival.sender != route.sums_from[-1]:
                accumulator.add(segment, sender)
                return []
            senders = tuple(self._peers[number] for number in route.sums_from)
            accumulator.finish(segment, senders, last=route.owned)
        if arrival.kind is Kind.SUM and not route.owned:
            return [self._sum(route, segment)]
        return [
            OutgoingSegment(route.mean_hop, segment.index, segment.part, to, Kind.MEAN, segment)
            for to in route.means_to
        ]

    def body(self, send: OutgoingSegment) -> memoryview:
        """Return the bytes to send. A bare own contribution is made here, just before it leaves.

        Raises Blamed.
        """
        if send.kind is Kind.SUM and not self._routes[send.part].sums_from:
            self._arithmetic.contribute(send.segment)
        return self._arithmetic.place(send.segment)

    def gone(self, send: OutgoingSegment) -> None:
        """The last byte has left, so the mean may take the place."""
        self.left_to_go[send.to] -= 1
        self._left -= 1
        if send.kind is Kind.SUM:
            self._sums_gone.add((send.part, send.index))

    def _sum(self, route: Route, segment: Segment) -> OutgoingSegment:
        assert route.sum_to is not None
        return OutgoingSegment(
            route.sum_hop, segment.index, segment.part, route.sum_to, Kind.SUM, segment
        )

    def _comes_from(self, kind: Kind, part: int, sender: int) -> bool:
        route = self._routes[part]
        return sender in route.sums_from if kind is Kind.SUM else sender == route.mean_from

    def _accumulator(self, owned: bool) -> Accumulator:
        if not self._accumulators:
            self._accumulators = self._made_accumulators()
        return self._accumulators[owned]

    def _made_accumulators(self) -> dict[bool, Accumulator]:
        due: dict[bool, list[Segment]] = {}
        for route, run in zip(self._routes, self._runs, strict=True):
            if len(route.sums_from) > 1:
                due.setdefault(route.owned, []).extend(run)
        assert len(due) <= ACCUMULATORS
        return {
            owned: Accumulator(self._arithmetic, _in_order(segments))
            for owned, segments in due.items()
        }

    def _count(self, route: Route, segments: int) -> None:
        for sender in (*route.sums_from, route.mean_from):
            if sender is not None:
                self.left_to_come[sender] += segments
        for sender in (*route.sums_from, route.mean_from if route.means_to else None):
            if sender is not None:
                self.left_to_pass_on[sender] += segments
        for to in (route.sum_to, *route.means_to):
            if to is not None:
                self.left_to_go[to] += segments


def _in_order(segments: list[Segment]) -> list[Segment]:
    """Sort the segments in the order in which they are sent."""
    return sorted(segments, key=lambda segment: (segment.index, segment.part))

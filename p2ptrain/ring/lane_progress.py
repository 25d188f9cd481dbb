"""The progress of one lane: which segments can be received, where they go, and what can be sent
next.

A lane is a slice of the vector with its own thread and connections. This module follows the plan,
does the arithmetic, and refuses frames that do not fit the plan. It knows nothing about sockets or
time; the caller transfers the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ring.arithmetic import Accumulator
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.hop_signatures import SIGNATURE_BYTES, HopSignatures, SignedRun
from p2ptrain.ring.plan import Segment
from p2ptrain.ring.schedules import Route, accumulates, owner_of
from p2ptrain.ring.wire import SIGNATURES, Header, Kind


@dataclass(frozen=True, slots=True, order=True)
class OutgoingSegment:
    """A segment that may be sent, or a signature. A heap puts the segment with the most hops left
    first."""

    hop: int
    """The number of hops that the segment's sum or mean has made so far."""
    index: int
    part: int
    to: int
    kind: Kind = field(compare=False)
    segment: Segment = field(compare=False)


@dataclass(frozen=True, slots=True)
class IncomingSegment:
    """A segment, or a signature, that neighbour number `sender` is sending."""

    sender: int
    kind: Kind
    segment: Segment


class LaneProgress:
    """One peer's share of one lane. Used by one thread, but any thread may read the counts."""

    def __init__(self, attempt: Attempt, number: int) -> None:
        self._arithmetic = attempt.arithmetic
        self._me = attempt.request.me
        self._peers = attempt.request.peers
        self._routes = attempt.plan.routes
        self._runs = attempt.plan.lanes[number]
        peers = len(self._peers)
        self._owners = [
            owner_of(attempt.request.schedule, peers, part) for part in range(len(self._runs))
        ]
        self._signing = None
        if attempt.signing is not None:
            about = self._peers, self._routes, self._runs
            self._signing = HopSignatures(attempt.signing, *about)
        self._signatures: dict[tuple[Kind, int, int], bytearray] = {}
        """Signatures: those that arrive, by kind, part and sender, and those that we send, with our
        own number."""
        self._accumulators: dict[bool, Accumulator] = {}
        """The accumulators: `True` for our own part, `False` for the parts that we collect for
        others. Each is created when it is first needed.
        """
        self._in_order = accumulates(attempt.request.schedule)
        """Whether a sum may be received only if all sums with smaller indexes were received."""
        self._sums_come = [0 for _ in self._runs]
        """Number of sums received, by part."""
        self._claimed: set[tuple[Kind, int, int, int]] = set()
        """Kind, part, index and sender of each announced segment. Each may be sent only once."""
        self._sums_gone: set[tuple[int, int]] = set()
        """Part and index of the sums that have been sent."""
        self._sums_left = sum(
            len(run) * len(route.sums_from)
            for route, run in zip(self._routes, self._runs, strict=True)
        )
        self.left_to_come: dict[int, int] = dict.fromkeys(attempt.plan.neighbours, 0)
        """Segments still to be received, by neighbour."""
        self.left_to_go: dict[int, int] = dict.fromkeys(attempt.plan.neighbours, 0)
        """Segments still to be sent, by neighbour."""
        self.left_to_pass_on: dict[int, int] = dict.fromkeys(attempt.plan.neighbours, 0)
        """Segments still to be received that we have to forward or add to, by neighbour."""
        for route, run in zip(self._routes, self._runs, strict=True):
            self._count(route, len(run) + (1 if run and self._signing else 0))
        self._left = sum(self.left_to_come.values()) + sum(self.left_to_go.values())

    @property
    def finished(self) -> bool:
        return self._left == 0

    @property
    def scattered(self) -> bool:
        """Whether all sums have been received, so that only means are missing."""
        return self._sums_left == 0

    def at_start(self) -> list[OutgoingSegment]:
        """Return our contributions that we send without adding a received sum."""
        return [
            self._sum(route, segment)
            for route, run in zip(self._routes, self._runs, strict=True)
            for segment in run
            if not route.sums_from and not route.owned
        ]

    def claim(self, header: Header, sender: int) -> IncomingSegment:
        """Return the segment that `header` announces.

        Raises:
            RemoteProtocolError: `sender` should not send this segment.
        """
        part, index = header.part, header.index
        route = self._routes[part] if part < len(self._routes) else None
        is_sum = header.kind in (Kind.SUM, Kind.SUM_SIGNED)
        if route is None or sender not in (route.sums_from if is_sum else (route.mean_from,)):
            raise RemoteProtocolError(
                f"this peer must not send this node a {header.kind.name.lower()} of part {part}"
            )
        run = self._segments(header.kind, part)
        claim = (header.kind, part, index, sender)
        if index >= len(run) or claim in self._claimed:
            raise RemoteProtocolError(
                f"segment {index} of part {part} does not exist or was sent twice"
            )
        segment = run[index]
        if header.length != segment.bytes:
            raise RemoteProtocolError(
                f"a frame has {header.length} bytes; expected {segment.bytes}"
            )
        if header.kind is Kind.MEAN and (part, index) not in self._sums_gone:
            raise RemoteProtocolError("a mean arrived before the sum that it depends on was sent")
        self._claimed.add(claim)
        return IncomingSegment(sender, header.kind, segment)

    def place(self, arrival: IncomingSegment) -> memoryview | None:
        """Return the buffer for the bytes; None if other segments must be received first."""
        segment, route = arrival.segment, self._routes[arrival.segment.part]
        if arrival.kind in SIGNATURES:
            signature = bytearray(SIGNATURE_BYTES)
            self._signatures[arrival.kind, segment.part, arrival.sender] = signature
            return memoryview(signature)
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
        """Return the number of the peer that has to send first, before `arrival` can be received.
        It is the sender of `arrival` itself if the sender sent this segment too early.
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
        """Process a segment that has been received. Return what may be sent now.

        Raises Blamed.
        """
        segment, route = arrival.segment, self._routes[arrival.segment.part]
        is_sum = arrival.kind in (Kind.SUM, Kind.SUM_SIGNED)
        self._sums_left -= arrival.kind is Kind.SUM
        self.left_to_come[arrival.sender] -= 1
        self.left_to_pass_on[arrival.sender] -= bool(is_sum or route.means_to)
        self._left -= 1
        if self._signing is None:
            return self._processed(arrival, route)
        if arrival.kind in SIGNATURES:
            return self._signed(self._signing, arrival, route)
        # Hash the sum before ours is added to it, in the same place.
        number = arrival.sender if is_sum else self._owners[segment.part]
        arrived = self.place(arrival)
        assert arrived is not None
        verified = self._signing.arrived(number, segment.part, segment.index, arrived)
        found = self._processed(arrival, route)
        if is_sum and arrival.sender == route.sums_from[-1]:
            place = self._arithmetic.place(segment)
            self._signing.made(self._me, segment.part, segment.index, place)
        mean = not is_sum
        if mean and not verified:
            return found
        return found + self._due(self._signing, route, segment.part, mean=mean)

    def _processed(self, arrival: IncomingSegment, route: Route) -> list[OutgoingSegment]:
        """Do the arithmetic of a segment. Return the segments that may be sent now."""
        segment, sender = arrival.segment, self._peers[arrival.sender]
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
        """Return the bytes to send. If the segment is our contribution without a received sum,
        compute it now.

        Raises Blamed.
        """
        if send.kind in SIGNATURES:
            return memoryview(self._signatures[send.kind, send.part, self._me])
        place = self._arithmetic.place(send.segment)
        if send.kind is Kind.SUM and not self._routes[send.part].sums_from:
            self._arithmetic.contribute(send.segment)
            if self._signing is not None:
                self._signing.made(self._me, send.part, send.index, place)
        return place

    def signed_by(self, send: OutgoingSegment) -> list[OutgoingSegment]:
        """Return our signature if it has become due because the bytes of `send` were computed."""
        if self._signing is None or send.kind is not Kind.SUM:
            return []
        return self._due(self._signing, self._routes[send.part], send.part)

    @property
    def kept(self) -> list[SignedRun]:
        """The runs that this peer and others have signed, as far as they are verified."""
        return [] if self._signing is None else self._signing.kept

    def gone(self, send: OutgoingSegment) -> None:
        """Record that a segment has been sent completely. If it was a sum, its mean may now arrive
        in the same place.
        """
        self.left_to_go[send.to] -= 1
        self._left -= 1
        if send.kind is Kind.SUM:
            self._sums_gone.add((send.part, send.index))

    def _signed(
        self, signing: HopSignatures, arrival: IncomingSegment, route: Route
    ) -> list[OutgoingSegment]:
        """Process a signature that has arrived. Return the signatures that may be sent now."""
        part, sender = arrival.segment.part, self._peers[arrival.sender]
        number = arrival.sender if arrival.kind is Kind.SUM_SIGNED else self._owners[part]
        signature = bytes(self._signatures[arrival.kind, part, arrival.sender])
        if not signing.signed(number, part, signature, sender):
            return []
        return self._due(signing, route, part, mean=arrival.kind is Kind.MEAN_SIGNED)

    def _due(
        self, signing: HopSignatures, route: Route, part: int, *, mean: bool = False
    ) -> list[OutgoingSegment]:
        """Return the signatures that may be sent now for a part: our own, or with `mean` that of
        its owner, which has just been verified."""
        if mean:
            signature: bytes | None = signing.signature(self._owners[part], part)
        else:
            signature = signing.own(self._me, part)
        if signature is None:
            return []
        is_mean = mean or route.owned
        kind = Kind.MEAN_SIGNED if is_mean else Kind.SUM_SIGNED
        hop, receivers = route.mean_hop, route.means_to
        if not is_mean:
            assert route.sum_to is not None
            hop, receivers = route.sum_hop, (route.sum_to,)
        self._signatures[kind, part, self._me] = bytearray(signature)
        segment = self._segments(kind, part)[0]
        return [OutgoingSegment(hop, 0, part, to, kind, segment) for to in receivers]

    def _segments(self, kind: Kind, part: int) -> Sequence[Segment]:
        """Return the segments of a part, or what stands for them if `kind` is a signature."""
        run = self._runs[part]
        if kind not in SIGNATURES:
            return run
        if not run or self._signing is None:
            return ()
        return (Segment(part, 0, run[0].start, run[-1].stop, 0, SIGNATURE_BYTES),)

    def _sum(self, route: Route, segment: Segment) -> OutgoingSegment:
        assert route.sum_to is not None
        return OutgoingSegment(
            route.sum_hop, segment.index, segment.part, route.sum_to, Kind.SUM, segment
        )

    def _accumulator(self, owned: bool) -> Accumulator:
        if owned not in self._accumulators:
            due = [
                segment
                for route, run in zip(self._routes, self._runs, strict=True)
                if len(route.sums_from) > 1 and route.owned == owned
                for segment in run
            ]
            due.sort(key=lambda segment: (segment.index, segment.part))  # the order of sending
            self._accumulators[owned] = Accumulator(self._arithmetic, due)
        return self._accumulators[owned]

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

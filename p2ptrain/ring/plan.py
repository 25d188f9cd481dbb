"""Who sends which bytes to whom, as a pure function that tests can check.

The vector's blocks are cut into N parts, one for each peer, each part into one run for each lane,
each run into segments. `schedules` says which way a part goes; lanes have nothing to do with each
other. It knows nothing of connections, weights or time.

A lane has several connections to a neighbour, and a segment goes on any of them. In a ring any
order of sending will do. Where a peer adds several sums to one segment, it takes them in the plan's
order, and the segments in that of (index, part); it leaves unread what comes too early. Sums leave
in that order too, those that somebody has added to in the order of their index, on whichever
connections: that keeps everybody from waiting in a circle. So no peer needs to hold more than the
segments that it is adding up, however many neighbours it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from p2ptrain.errors import LocalProtocolError
from p2ptrain.ring.schedules import Route, Schedule, accumulates, routes

STREAMS_MAX = 64
"""Far more connections than any path needs; a header gives the stream one byte."""
PEERS_MAX = 4096
"""A header gives the part two bytes."""
ACCUMULATORS = 2
"""Segments that a lane adds up at once: one of its own part, and one that it collects for the
owner of another. One alone could be kept waiting by the other."""
SEGMENTS_HELD_MAX = 4
"""Memory for adding up, and for what is arriving to be added, in segments of full size a lane."""


class Cut(Protocol):
    """What a plan needs to know of a codec: runs of whole blocks are slices of the payload."""

    @property
    def block(self) -> int: ...

    def encoded_bytes(self, numel: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of whole blocks of a part: elements [start, stop) at `offset` in the payload."""

    part: int
    index: int
    start: int
    stop: int
    offset: int
    bytes: int


Runs = tuple[tuple[Segment, ...], ...]
"""By part: the segments of one lane."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The traffic of one peer: for each lane and part, segments that all take the same route."""

    me: int
    routes: tuple[Route, ...]
    lanes: tuple[Runs, ...]

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Who is sent to or heard from."""
        found: set[int | None] = set()
        for route in self.routes:
            found.update(route.sums_from, route.means_to, (route.sum_to, route.mean_from))
        return tuple(sorted(peer for peer in found if peer is not None))

    def bytes_to(self, peer: int) -> int:
        """Without headers."""
        return self._bytes(
            tuple((route.sum_to == peer) + (peer in route.means_to) for route in self.routes)
        )

    def bytes_from(self, peer: int) -> int:
        """Without headers."""
        return self._bytes(
            tuple((peer in route.sums_from) + (route.mean_from == peer) for route in self.routes)
        )

    @property
    def bytes_moved(self) -> int:
        """What this peer sends and receives in all, headers apart."""
        return sum(self.bytes_to(peer) + self.bytes_from(peer) for peer in self.neighbours)

    def _bytes(self, times: tuple[int, ...]) -> int:
        return sum(
            times[segment.part] * segment.bytes
            for runs in self.lanes
            for run in runs
            for segment in run
        )


def plan(
    schedule: Schedule,
    peers: int,
    me: int,
    numel: int,
    codec: Cut,
    lanes: int,
    segment_bytes: int,
) -> Plan:
    """The traffic of peer number `me` of `peers`.

    Every peer calls it with the same arguments but `me`: then each receive is matched by one send
    of a neighbour. A segment has at most `segment_bytes`, so much less where several are added up
    that SEGMENTS_HELD_MAX is kept, and always one block at least.

    Raises:
        LocalProtocolError: the arguments describe no reduce.
    """
    if not 1 <= peers <= PEERS_MAX or not 0 <= me < peers:
        raise LocalProtocolError(f"peer {me} of {peers} takes no part")
    if numel < 0 or segment_bytes < 1:
        raise LocalProtocolError(f"no reduce cuts {numel} elements at {segment_bytes} bytes")
    if not 1 <= lanes <= STREAMS_MAX:
        raise LocalProtocolError(f"a reduce has 1 to {STREAMS_MAX} lanes, not {lanes}")
    cutter = _Cutter(peers, numel, codec, lanes, _segment_blocks(schedule, codec, segment_bytes))
    runs = tuple(
        tuple(cutter.segments(part, lane) for part in range(peers)) for lane in range(lanes)
    )
    return Plan(me, routes(schedule, peers, me), runs)


def _segment_blocks(schedule: Schedule, codec: Cut, segment_bytes: int) -> int:
    block_bytes = codec.encoded_bytes(codec.block)
    if accumulates(schedule):
        # Each accumulator has the sum in fp32 and what is arriving.
        held_bytes = ACCUMULATORS * (4 * codec.block + block_bytes)
        block_bytes = max(block_bytes, -(-held_bytes // SEGMENTS_HELD_MAX))
    return max(1, segment_bytes // block_bytes)


@dataclass(frozen=True, slots=True)
class _Cutter:
    peers: int
    numel: int
    codec: Cut
    lanes: int
    segment_blocks: int

    def segments(self, part: int, lane: int) -> tuple[Segment, ...]:
        """The segments of one lane's run of `part`: of nearly equal size."""
        blocks = -(-self.numel // self.codec.block)
        runs = self.peers * self.lanes
        run = part * self.lanes + lane
        first, end = run * blocks // runs, (run + 1) * blocks // runs
        count = -(-(end - first) // self.segment_blocks)
        cuts = [first + at * (end - first) // max(count, 1) for at in range(count)] + [end]
        return tuple(self._segment(part, at, cuts[at], cuts[at + 1]) for at in range(count))

    def _segment(self, part: int, index: int, first: int, end: int) -> Segment:
        start, stop = first * self.codec.block, min(end * self.codec.block, self.numel)
        return Segment(
            part=part,
            index=index,
            start=start,
            stop=stop,
            offset=self.codec.encoded_bytes(start),
            bytes=self.codec.encoded_bytes(stop - start),
        )

"""Plan which bytes each peer sends and to whom, as a pure function that tests can check.

The vector's blocks are divided into N parts, one for each peer. Each part is divided into one range
for each lane (a thread with its own connections), and each range into segments. `schedules` defines
the route of a part. Lanes are independent of each other. This module knows nothing about
connections, weights or time.

A lane has several connections to a neighbour, and a segment can use any of them. In a ring, sums
may be sent in any order. In the other schedules a peer adds several sums to one segment. It
receives the segments in the order of (index, part), and the sums for a segment in the plan's order.
It does not read segments that arrive too early. So it stores only the segments that it is adding
up, no matter how many neighbours it has. A peer also sends its own contributions in the order of
(index, part). The sums that it has added up are sent in the order of their segments' indices. This
prevents deadlocks in which peers wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from p2ptrain.errors import LocalProtocolError
from p2ptrain.ring.schedules import Route, Schedule, accumulates, routes

STREAMS_MAX = 64
"""Maximum number of streams between two neighbours: far more than any path needs. A header has one
byte for the stream."""
PEERS_MAX = 4096
"""Maximum number of peers, and so of parts. A header has two bytes for the part."""
ACCUMULATORS = 2
"""Number of segments that a lane adds up at a time: one from the part that this peer owns, and one
from a part of another peer. With only one accumulator, the two parts could block each other."""
SEGMENTS_HELD_MAX = 4
"""Maximum memory of a lane for totals and for arriving sums, in segments of `segment_bytes`."""


class BlockCodec(Protocol):
    """The methods of a codec that a plan uses. A codec encodes each block separately, so a range of
    whole blocks is a slice of the payload."""

    @property
    def block(self) -> int: ...

    def encoded_bytes(self, numel: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive whole blocks of a part: elements [start, stop), at `offset` in the payload."""

    part: int
    index: int
    start: int
    stop: int
    offset: int
    bytes: int


Runs = tuple[tuple[Segment, ...], ...]
"""The segments of one lane, by part. (A *run* in this package is a lane's range of one part.)"""


@dataclass(frozen=True, slots=True)
class ReducePlan:
    """The traffic of one peer: the route of each part, and the segments of each lane and part. All
    segments of a part take the same route.
    """

    me: int
    routes: tuple[Route, ...]
    lanes: tuple[Runs, ...]

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The peers that this peer sends to or receives from."""
        found: set[int | None] = set()
        for route in self.routes:
            found.update(route.sums_from, route.means_to, (route.sum_to, route.mean_from))
        return tuple(sorted(peer for peer in found if peer is not None))

    def bytes_to(self, peer: int) -> int:
        """Return the bytes sent to `peer`, without headers."""
        return sum(
            ((route.sum_to == peer) + (peer in route.means_to)) * part_bytes
            for route, part_bytes in self._parts()
        )

    def bytes_from(self, peer: int) -> int:
        """Return the bytes received from `peer`, without headers."""
        return sum(
            ((peer in route.sums_from) + (route.mean_from == peer)) * part_bytes
            for route, part_bytes in self._parts()
        )

    @property
    def bytes_moved(self) -> int:
        """The bytes that this peer sends and receives in total, without headers."""
        return sum(self.bytes_to(peer) + self.bytes_from(peer) for peer in self.neighbours)

    def _parts(self) -> Iterator[tuple[Route, int]]:
        """Yield the route and the size in bytes of each part."""
        for part, route in enumerate(self.routes):
            yield route, sum(segment.bytes for runs in self.lanes for segment in runs[part])


def plan(
    schedule: Schedule,
    peers: int,
    me: int,
    numel: int,
    codec: BlockCodec,
    lanes: int,
    segment_bytes: int,
) -> ReducePlan:
    """Return the traffic of peer number `me` of `peers`.

    Every peer calls this function with the same arguments except `me`. So each receive matches one
    send of a neighbour. A segment has at most `segment_bytes`. If several sums are added to a
    segment, SEGMENTS_HELD_MAX makes it shorter. A segment has at least one block.

    Raises:
        LocalProtocolError: the arguments are invalid.
    """
    if not 1 <= peers <= PEERS_MAX or not 0 <= me < peers:
        raise LocalProtocolError(f"a reduce of {peers} peers cannot have a peer number {me}")
    if numel < 0 or segment_bytes < 1:
        raise LocalProtocolError(
            f"{numel} elements cannot be divided into segments of {segment_bytes} bytes"
        )
    if not 1 <= lanes <= STREAMS_MAX:
        raise LocalProtocolError(f"a reduce has 1 to {STREAMS_MAX} lanes, not {lanes}")
    blocks, runs = -(-numel // codec.block), peers * lanes
    cuts = [run * blocks // runs for run in range(runs + 1)]
    blocks_max = _segment_blocks(schedule, codec, segment_bytes)

    def segments(part: int, lane: int) -> tuple[Segment, ...]:
        run = part * lanes + lane
        return tuple(_segments(part, cuts[run], cuts[run + 1], numel, codec, blocks_max))

    segments_of = tuple(
        tuple(segments(part, lane) for part in range(peers)) for lane in range(lanes)
    )
    return ReducePlan(me, routes(schedule, peers, me), segments_of)


def _segment_blocks(schedule: Schedule, codec: BlockCodec, segment_bytes: int) -> int:
    """Return the maximum number of blocks in a segment."""
    block_bytes = codec.encoded_bytes(codec.block)
    if accumulates(schedule):
        # Each accumulator holds the sum in fp32 and the arriving bytes.
        held_bytes = ACCUMULATORS * (4 * codec.block + block_bytes)
        block_bytes = max(block_bytes, -(-held_bytes // SEGMENTS_HELD_MAX))
    return max(1, segment_bytes // block_bytes)


def _segments(
    part: int, first: int, end: int, numel: int, codec: BlockCodec, blocks_max: int
) -> Iterator[Segment]:
    """Divide the blocks [first, end) of `part` into segments of nearly equal sizes."""
    count = -(-(end - first) // blocks_max)
    cuts = [first + at * (end - first) // count for at in range(count)] + [end]
    for index, (low, high) in enumerate(pairwise(cuts)):
        start, stop = low * codec.block, min(high * codec.block, numel)
        offset, size = codec.encoded_bytes(start), codec.encoded_bytes(stop - start)
        yield Segment(part, index, start, stop, offset, size)

"""Who sends which bytes to whom in a ring, as a pure function that tests can check.

The vector's blocks are cut into N parts, one for each peer, each part into one run for each stream,
each run into segments. A part starts at the peer of its own number and travels 2 (N − 1) hops:

    hop        0 … N−3          N−2                  N−1 … 2N−4        2N−3
    receiver   adds, passes on  adds, divides: it    passes the bytes  keeps them
               (PASS_ON)        owns the result      on (FORWARD)      (KEEP)
                                (FINISH)

At hop h peer m receives part (m − 1 − h) mod N and sends part (m − h) mod N. It knows nothing of
sockets, weights or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from p2ptrain.errors import LocalProtocolError
from p2ptrain.kernels import BLOCK_MAX, encoded_bytes

STREAMS_MAX = 64
"""Far more connections than any path needs; a header gives the stream one byte."""
PEERS_MAX = 4096
"""A header gives the hop two bytes."""


class Duty(Enum):
    """What a receiver does with a segment."""

    PASS_ON = "add the own contribution and send on"
    FINISH = "add the own contribution, divide, and send the result"
    FORWARD = "keep the result and send the same bytes on"
    KEEP = "keep the result"


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of whole blocks on its way: elements [start, stop) at `offset` in the payload."""

    hop: int
    index: int
    start: int
    stop: int
    offset: int
    bytes: int

    def at_hop(self, hop: int) -> Segment:
        return Segment(hop, self.index, self.start, self.stop, self.offset, self.bytes)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One stream's traffic: for each hop, the segments in the order in which they travel."""

    receives: tuple[tuple[Segment, ...], ...]
    sends: tuple[tuple[Segment, ...], ...]

    @property
    def bytes_received(self) -> int:
        return sum(segment.bytes for hop in self.receives for segment in hop)

    @property
    def bytes_sent(self) -> int:
        return sum(segment.bytes for hop in self.sends for segment in hop)


@dataclass(frozen=True, slots=True)
class RingPlan:
    peers: int
    me: int
    streams: tuple[StreamPlan, ...]

    def duty(self, hop: int) -> Duty:
        assert 0 <= hop < 2 * (self.peers - 1)
        if hop < self.peers - 2:
            return Duty.PASS_ON
        if hop == self.peers - 2:
            return Duty.FINISH
        return Duty.FORWARD if hop < 2 * self.peers - 3 else Duty.KEEP

    @property
    def bytes_moved(self) -> int:
        """What this peer sends and receives in all, headers apart."""
        return sum(stream.bytes_sent + stream.bytes_received for stream in self.streams)


def plan(peers: int, me: int, numel: int, block: int, streams: int, segment_bytes: int) -> RingPlan:
    """The traffic of peer number `me` of `peers`.

    Every peer calls it with the same arguments but `me`: then each receive is matched by one send
    of the neighbour. A segment has at most `segment_bytes`, but always one block at least.

    Raises:
        LocalProtocolError: the arguments describe no ring.
    """
    if not 1 <= peers <= PEERS_MAX or not 0 <= me < peers:
        raise LocalProtocolError(f"peer {me} of {peers} is in no ring")
    if numel < 0 or not 1 <= block <= BLOCK_MAX or segment_bytes < 1:
        raise LocalProtocolError(f"no ring cuts {numel} elements in blocks of {block}")
    if not 1 <= streams <= STREAMS_MAX:
        raise LocalProtocolError(f"a ring has 1 to {STREAMS_MAX} streams, not {streams}")
    cutter = _Cutter(peers, numel, block, streams, max(1, segment_bytes // (block + 4)))
    return RingPlan(peers, me, tuple(_stream_plan(cutter, me, at) for at in range(streams)))


@dataclass(frozen=True, slots=True)
class _Cutter:
    peers: int
    numel: int
    block: int
    streams: int
    segment_blocks: int

    def segments(self, part: int, stream: int, hop: int) -> tuple[Segment, ...]:
        """The segments of one stream's run of `part`: of nearly equal size."""
        blocks = -(-self.numel // self.block)
        runs = self.peers * self.streams
        run = part * self.streams + stream
        first, end = run * blocks // runs, (run + 1) * blocks // runs
        count = -(-(end - first) // self.segment_blocks)
        cuts = [first + at * (end - first) // max(count, 1) for at in range(count)] + [end]
        return tuple(self._segment(hop, at, cuts[at], cuts[at + 1]) for at in range(count))

    def _segment(self, hop: int, index: int, first: int, end: int) -> Segment:
        start, stop = first * self.block, min(end * self.block, self.numel)
        return Segment(
            hop=hop,
            index=index,
            start=start,
            stop=stop,
            offset=encoded_bytes(start, self.block),
            bytes=encoded_bytes(stop - start, self.block),
        )


def _stream_plan(cutter: _Cutter, me: int, stream: int) -> StreamPlan:
    hops = range(2 * (cutter.peers - 1))
    return StreamPlan(
        receives=tuple(cutter.segments((me - 1 - hop) % cutter.peers, stream, hop) for hop in hops),
        sends=tuple(cutter.segments((me - hop) % cutter.peers, stream, hop) for hop in hops),
    )

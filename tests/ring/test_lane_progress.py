"""Peers never deadlock, and memory stays bounded, whatever the order of delivery."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId, RunId
from p2ptrain.kernels import codec as codec_of
from p2ptrain.ring import SCHEDULES, SIGNATURE_BYTES, Difference, ReduceRequest, Schedule
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import SharedVerdict
from p2ptrain.ring.lane_progress import IncomingSegment, LaneProgress
from p2ptrain.ring.plan import SEGMENTS_HELD_MAX
from p2ptrain.ring.wire import Header, Kind
from tests.ring.crowd import Crowd

BLOCK = 8


class NoKeys:
    """A signing whose signatures are the first bytes of the leaves' digest."""

    def sign(self, start: int, stop: int, leaves: bytes) -> bytes:
        return blake3(leaves).digest(SIGNATURE_BYTES)

    def is_signed(
        self, peer: PeerId, start: int, stop: int, leaves: bytes, signature: bytes
    ) -> bool:
        return signature == self.sign(start, stop, leaves)


def crowd_of(
    schedule: Schedule,
    peers: int,
    streams: int,
    depth: int,
    *,
    signed: bool = False,
    seed: int | None = None,
) -> Crowd:
    seed = peers if seed is None else seed
    numel = random.Random(seed).randint(0, (3 * peers + 100) * BLOCK)
    names = tuple(PeerId(f"peer-{number}") for number in range(peers))
    request = ReduceRequest(
        RunId("ab" * 32), 0, 0, names, 0, (1,) * peers, numel, codec_of("int8", BLOCK),
        schedule=schedule, streams=streams, segment_bytes=4 * BLOCK, signed=signed,
    )  # fmt: skip
    return Crowd(request, depth, seed, signings=[NoKeys()] * peers if signed else [])


@pytest.mark.parametrize(
    ("schedule", "peers"),
    [
        *((schedule, peers) for schedule in SCHEDULES for peers in (*range(2, 13), 16, 17, 31)),
        ("ring", 64),
        ("grid", 64),
    ],
)
@pytest.mark.parametrize(("streams", "depth"), [(1, 1), (2, 3)])
@pytest.mark.parametrize("signed", [False, True])
def test_peers_never_deadlock_on_connections_with_small_buffers(
    schedule: Schedule, peers: int, streams: int, depth: int, signed: bool
) -> None:
    crowd = crowd_of(schedule, peers, streams, depth, signed=signed)
    crowd.run()
    assert all(work.finished and work.scattered for work in crowd.works)
    assert not any(left for work in crowd.works for left in work.left_to_pass_on.values())
    assert len({bytes(payload) for payload in crowd.payloads}) == 1


def attempt_of(request: ReduceRequest) -> Attempt:
    theta, local = np.ones(request.numel, np.float32), np.zeros(request.numel, np.float32)
    payload = bytearray(request.codec.encoded_bytes(request.numel))
    arithmetic = Arithmetic(request, Difference(theta, local), payload)
    verdict = SharedVerdict(lambda: None)
    return Attempt(request, request.plan(), request.tag(), arithmetic, verdict, None)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lane_allocates_at_most_four_segments(schedule: Schedule) -> None:
    """A lane needs no more memory for more peers. Here `place` allocates the memory, as in the
    lane's threads.
    """
    request = ReduceRequest(
        RunId("ab" * 32), 0, 0, tuple(PeerId(f"peer-{n}") for n in range(16)), 0, (1,) * 16,
        1 << 20, codec_of("int8", 256), schedule=schedule, streams=1, segment_bytes=1 << 16,
    )  # fmt: skip
    work = LaneProgress(attempt_of(request), 0)
    sums = [
        IncomingSegment(route.sums_from[0], Kind.SUM, run[0])
        for route, run in zip(request.plan().routes, request.plan().lanes[0], strict=True)
        if route.sums_from
    ]
    tracemalloc.start()
    places = [work.place(arrival) for arrival in sums]
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kinds = {route.owned for route in request.plan().routes if len(route.sums_from) > 1}
    assert sum(place is not None for place in places) == (len(kinds) or len(places))
    assert held_bytes <= SEGMENTS_HELD_MAX * request.segment_bytes + 20_000
    assert (held_bytes > request.segment_bytes) == (schedule != "ring")


PEERS = tuple(PeerId(f"peer-{number}") for number in range(4))


def announced(work_of: int, **fields: Any) -> Header:
    request = ReduceRequest(
        RunId("ab" * 32), 0, 0, PEERS, work_of, (1,) * 4, 4 * 256, codec_of("int8", 256), streams=1
    )
    first = Header(Kind.SUM, 0, 3, 0, 260, 0, 0, request.tag())
    return replace(first, **fields)


@pytest.mark.parametrize(
    ("header", "sender"),
    [
        (
            announced(0, part=0),
            3,
        ),  # this peer starts the sum of part 0, so it does not receive that sum
        (announced(0, part=4), 3),
        (
            announced(0, kind=Kind.MEAN, part=1),
            3,
        ),  # this peer owns part 1
        (announced(0, index=1), 3),
        (announced(0, length=259), 3),
        (announced(0), 1),  # in a ring, the next peer does not send to this one
        (announced(0, kind=Kind.MEAN), 3),  # this peer's sum has not been sent yet
    ],
)
def test_segment_that_is_not_due_is_refused(header: Header, sender: int) -> None:
    request = ReduceRequest(
        RunId("ab" * 32), 0, 0, PEERS, 0, (1,) * 4, 4 * 256, codec_of("int8", 256), streams=1
    )
    work = LaneProgress(attempt_of(request), 0)
    with pytest.raises(RemoteProtocolError):
        work.claim(header, sender)
    assert work.claim(announced(0), 3).segment.part == 3


@pytest.mark.parametrize(("schedule", "early", "held_up_by"), [("direct", 2, 1), ("grid", 1, 1)])
def test_early_segment_waits_for_the_segment_that_is_added_first(
    schedule: Schedule, early: int, held_up_by: int
) -> None:
    """Peer 0 adds the segments of peer 1 first, and the segments of one peer in their order."""
    request = ReduceRequest(
        RunId("ab" * 32), 0, 0, PEERS, 0, (1,) * 4, 4 * 2 * 256, codec_of("int8", 256),
        schedule=schedule, streams=2, segment_bytes=300,
    )  # fmt: skip
    work, (first, second) = LaneProgress(attempt_of(request), 0), request.plan().lanes[0][0]
    assert work.place(IncomingSegment(early, Kind.SUM, second)) is None
    assert work.held_up_by(IncomingSegment(early, Kind.SUM, second)) == held_up_by
    assert work.place(IncomingSegment(1, Kind.SUM, first)) is not None
    assert {number for number, left in work.left_to_pass_on.items() if left} == {
        number for route in request.plan().routes for number in route.sums_from
    }

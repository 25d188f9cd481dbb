"""Every byte travels exactly once where it must, and every receive is matched by one send."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import LocalProtocolError
from p2ptrain.kernels import encoded_bytes
from p2ptrain.ring import Duty, RingPlan, Segment, plan

rings = st.tuples(
    st.integers(1, 12),  # peers
    st.integers(0, 20_000),  # numel
    st.sampled_from([1, 7, 256, 4096]),  # block
    st.integers(1, 4),  # streams
    st.integers(1, 9000),  # segment_bytes
)


def plans(peers: int, numel: int, block: int, streams: int, segment_bytes: int) -> list[RingPlan]:
    return [plan(peers, me, numel, block, streams, segment_bytes) for me in range(peers)]


def covered(segments: list[Segment]) -> list[tuple[int, int]]:
    """The element ranges of `segments` in order, neighbours joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted((segment.start, segment.stop) for segment in segments):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


@settings(max_examples=80, deadline=None)
@given(rings)
def test_what_a_peer_sends_is_what_the_next_receives(ring: tuple[int, ...]) -> None:
    every = plans(*ring)
    for me, mine in enumerate(every):
        after = every[(me + 1) % len(every)]
        for ours, theirs in zip(mine.streams, after.streams, strict=True):
            assert ours.sends == theirs.receives


@settings(max_examples=80, deadline=None)
@given(rings)
def test_what_is_not_kept_is_sent_on_at_the_next_hop(ring: tuple[int, ...]) -> None:
    for mine in plans(*ring):
        for stream in mine.streams:
            for hop, received in enumerate(stream.receives):
                if mine.duty(hop) is not Duty.KEEP:
                    on = tuple(segment.at_hop(hop + 1) for segment in received)
                    assert on == stream.sends[hop + 1]


@settings(max_examples=80, deadline=None)
@given(rings)
def test_every_peer_gets_each_mean_once(ring: tuple[int, ...]) -> None:
    peers, numel, *_ = ring
    for mine in plans(*ring):
        means = [
            segment
            for stream in mine.streams
            for hop, received in enumerate(stream.receives)
            if mine.duty(hop) is not Duty.PASS_ON
            for segment in received
        ]
        assert sum(segment.stop - segment.start for segment in means) == numel * (peers > 1)
        assert covered(means) == ([(0, numel)] if numel and peers > 1 else [])


@settings(max_examples=80, deadline=None)
@given(rings)
def test_every_peer_adds_to_each_element_once(ring: tuple[int, ...]) -> None:
    """Its own part it contributes at the start, each other part when it passes."""
    peers, numel, *_ = ring
    for mine in plans(*ring):
        touched = [
            segment
            for stream in mine.streams
            for hops in (stream.sends[:1], stream.receives[: peers - 1])
            for hop in hops
            for segment in hop
        ]
        assert sum(segment.stop - segment.start for segment in touched) == numel * (peers > 1)


@settings(max_examples=80, deadline=None)
@given(rings)
def test_segments_are_whole_blocks_within_the_bound(ring: tuple[int, ...]) -> None:
    _, numel, block, _, segment_bytes = ring
    for mine in plans(*ring):
        for stream in mine.streams:
            for hop, received in enumerate(stream.receives):
                for index, segment in enumerate(received):
                    assert (segment.hop, segment.index) == (hop, index)
                    assert segment.start < segment.stop <= numel
                    assert segment.start % block == 0
                    assert segment.stop % block == 0 or segment.stop == numel
                    assert segment.offset == encoded_bytes(segment.start, block)
                    assert segment.bytes == encoded_bytes(segment.stop - segment.start, block)
                    assert segment.bytes <= max(segment_bytes, block + 4)


@pytest.mark.parametrize("peers", [2, 3, 4, 16, 64])
def test_a_peer_sends_twice_its_share_and_little_more(peers: int) -> None:
    numel = 1_000_000
    mine = plan(peers, 1, numel, 256, 4, 65_536)
    ideal = 2 * (peers - 1) / peers * encoded_bytes(numel, 256)
    sent = sum(stream.bytes_sent for stream in mine.streams)
    assert abs(sent / ideal - 1) < 0.005
    assert mine.bytes_moved == sent + sum(stream.bytes_received for stream in mine.streams)


def test_a_ring_of_four_is_as_the_table_says() -> None:
    mine = plan(4, 0, 4 * 256, 256, 1, 260)
    assert [mine.duty(hop) for hop in range(6)] == [
        Duty.PASS_ON, Duty.PASS_ON, Duty.FINISH, Duty.FORWARD, Duty.FORWARD, Duty.KEEP,
    ]  # fmt: skip
    (stream,) = mine.streams
    assert [hop[0].start // 256 for hop in stream.receives] == [3, 2, 1, 0, 3, 2]
    assert [hop[0].start // 256 for hop in stream.sends] == [0, 3, 2, 1, 0, 3]


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 0, 10, 256, 1, 1000),
        (3, 3, 10, 256, 1, 1000),
        (3, -1, 10, 256, 1, 1000),
        (3, 0, -1, 256, 1, 1000),
        (3, 0, 10, 0, 1, 1000),
        (3, 0, 10, 5000, 1, 1000),
        (3, 0, 10, 256, 0, 1000),
        (3, 0, 10, 256, 65, 1000),
        (3, 0, 10, 256, 1, 0),
    ],
)
def test_what_is_no_ring_is_refused(arguments: tuple[int, ...]) -> None:
    with pytest.raises(LocalProtocolError):
        plan(*arguments)

"""Every byte is sent exactly once to each peer that needs it, and every receive matches one
send.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import LocalProtocolError
from p2ptrain.kernels import codec as codec_of
from p2ptrain.ring import SCHEDULES, ReducePlan, Route, Schedule, Segment, plan, routes

cuts = st.tuples(
    st.sampled_from(SCHEDULES),
    st.integers(1, 64),  # peers
    st.integers(0, 20_000),  # numel
    st.sampled_from([1, 7, 256, 4096]),  # block
    st.integers(1, 4),  # streams
    st.integers(1, 9000),  # segment_bytes
)

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)

EVERY_SIZE = range(1, 65)
CODEC = codec_of("int8", 256)


def plans(
    schedule: Schedule, peers: int, numel: int, block: int, streams: int, segment_bytes: int
) -> list[ReducePlan]:
    codec = codec_of("int8", block)
    return [plan(schedule, peers, me, numel, codec, streams, segment_bytes) for me in range(peers)]


def covered(segments: list[Segment]) -> list[tuple[int, int]]:
    """Return the element ranges of `segments` in order, with adjacent ranges merged."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted((segment.start, segment.stop) for segment in segments):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def all_routes(schedule: Schedule, peers: int) -> list[tuple[Route, ...]]:
    """Return the routes, indexed by peer, then by part."""
    return [routes(schedule, peers, me) for me in range(peers)]


@every_schedule
def test_every_receive_matches_one_send(schedule: Schedule) -> None:
    for peers in EVERY_SIZE:
        by_peer = all_routes(schedule, peers)
        sent, received = Counter[tuple[str, int, int, int]](), Counter[tuple[str, int, int, int]]()
        for me, mine in enumerate(by_peer):
            for part, route in enumerate(mine):
                sent.update(("mean", part, me, to) for to in route.means_to)
                sent.update(("sum", part, me, to) for to in [route.sum_to] if to is not None)
                received.update(("sum", part, sender, me) for sender in route.sums_from)
                received.update(
                    ("mean", part, sender, me) for sender in [route.mean_from] if sender is not None
                )
        assert sent == received
        assert set(sent.values()) <= {1}
        assert all(one != other for _, _, one, other in sent)


@every_schedule
def test_every_peer_adds_to_each_part_once_and_gets_its_mean_once(schedule: Schedule) -> None:
    """The sums form a tree without cycles that ends at the single owner. From there, means reach
    every peer.
    """
    for peers in EVERY_SIZE:
        by_peer = all_routes(schedule, peers)
        for part in range(peers):
            (owner,) = [me for me in range(peers) if by_peer[me][part].owned]
            assert by_peer[owner][part].mean_from is None
            reached, heard = [owner], [owner]
            for peer in reached:
                reached += by_peer[peer][part].sums_from
                assert len(reached) <= peers
            for peer in heard:
                heard += by_peer[peer][part].means_to
                assert len(heard) <= peers
            assert sorted(reached) == sorted(heard) == list(range(peers))


@every_schedule
def test_every_peer_owns_one_part(schedule: Schedule) -> None:
    for peers in EVERY_SIZE:
        assert [sum(route.owned for route in mine) for mine in all_routes(schedule, peers)] == [
            1
        ] * peers


@every_schedule
def test_hop_numbers_grow_along_the_route(schedule: Schedule) -> None:
    """A sum is sent after the sums that it contains, and a mean is sent after all sums and after
    the mean that it forwards.
    """
    for peers in EVERY_SIZE:
        by_peer = all_routes(schedule, peers)
        for mine in by_peer:
            for part, route in enumerate(mine):
                assert all(
                    by_peer[sender][part].sum_hop < route.sum_hop for sender in route.sums_from
                )
                assert all(by_peer[to][part].mean_hop > route.mean_hop for to in route.means_to)
                assert route.mean_hop > route.sum_hop or route.owned


@pytest.mark.parametrize(
    ("schedule", "hops", "neighbours"), [("ring", 30, 2), ("direct", 2, 15), ("grid", 4, 6)]
)
def test_sixteen_peers_have_the_documented_number_of_hops_and_neighbours(
    schedule: Schedule, hops: int, neighbours: int
) -> None:
    by_peer = all_routes(schedule, 16)

    def until_mean(peer: int, part: int) -> int:
        route = by_peer[peer][part]
        if route.mean_from is not None:
            return 1 + until_mean(route.mean_from, part)
        return max((1 + until_sum(sender, part) for sender in route.sums_from), default=0)

    def until_sum(peer: int, part: int) -> int:
        senders = by_peer[peer][part].sums_from
        return max((1 + until_sum(sender, part) for sender in senders), default=0)

    assert max(until_mean(peer, part) for peer in range(16) for part in range(16)) == hops
    assert {len(plan(schedule, 16, me, 4096, CODEC, 1, 1000).neighbours) for me in range(16)} == {
        neighbours
    }


@settings(max_examples=60, deadline=None)
@given(cuts)
def test_segments_cover_each_element_once_and_are_the_same_at_all_peers(
    cut: tuple[Schedule, int, int, int, int, int],
) -> None:
    numel, every = cut[2], plans(*cut)
    segments = [segment for runs in every[0].lanes for run in runs for segment in run]
    assert sum(segment.stop - segment.start for segment in segments) == numel
    assert covered(segments) == ([(0, numel)] if numel else [])
    assert all(mine.lanes == every[0].lanes for mine in every)


@settings(max_examples=40, deadline=None)
@given(cuts)
def test_peers_send_exactly_the_bytes_that_their_neighbours_expect(
    cut: tuple[Schedule, int, int, int, int, int],
) -> None:
    every = plans(*cut)
    for mine in every:
        for other in mine.neighbours:
            assert mine.me in every[other].neighbours
            assert mine.bytes_to(other) == every[other].bytes_from(mine.me)
    moved = sum(mine.bytes_to(other) for mine in every for other in mine.neighbours)
    peers, numel, codec = cut[1], cut[2], codec_of("int8", cut[3])
    assert moved == 2 * (peers - 1) * codec.encoded_bytes(numel)


@settings(max_examples=60, deadline=None)
@given(cuts)
def test_segments_are_whole_blocks_within_the_bound(
    cut: tuple[Schedule, int, int, int, int, int],
) -> None:
    schedule, peers, numel, block, streams, segment_bytes = cut
    codec = codec_of("int8", block)
    mine = plan(schedule, peers, 0, numel, codec, streams, segment_bytes)
    for runs in mine.lanes:
        for part, run in enumerate(runs):
            for index, segment in enumerate(run):
                elements = segment.stop - segment.start
                assert (segment.part, segment.index) == (part, index)
                assert segment.start < segment.stop <= numel
                assert segment.start % block == 0
                assert segment.stop % block == 0 or segment.stop == numel
                assert segment.offset == codec.encoded_bytes(segment.start)
                assert segment.bytes == codec.encoded_bytes(elements)
                assert segment.bytes <= max(segment_bytes, block + 4)


@every_schedule
@pytest.mark.parametrize("peers", [2, 3, 4, 16, 64])
def test_peer_sends_about_twice_the_vector(schedule: Schedule, peers: int) -> None:
    """A peer receives about as much as it sends, except in a grid, where some peers collect sums
    for others.
    """
    numel = 1_000_000
    mine = plan(schedule, peers, 1, numel, CODEC, 4, 65_536)
    ideal = 2 * (peers - 1) / peers * CODEC.encoded_bytes(numel)
    sent = sum(mine.bytes_to(other) for other in mine.neighbours)
    assert abs(sent / ideal - 1) < 0.005
    assert mine.bytes_moved == sent + sum(mine.bytes_from(other) for other in mine.neighbours)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("star", 3, 0, 10, 1, 1000), "there is no schedule 'star'"),
        (("ring", 0, 0, 10, 1, 1000), "a reduce of 0 peers cannot have a peer number 0"),
        (("ring", 3, 3, 10, 1, 1000), "a reduce of 3 peers cannot have a peer number 3"),
        (("ring", 3, -1, 10, 1, 1000), "a reduce of 3 peers cannot have a peer number -1"),
        (("ring", 3, 0, -1, 1, 1000), "-1 elements cannot be divided into segments of 1000 bytes"),
        (("ring", 3, 0, 10, 0, 1000), "a reduce has 1 to 64 lanes, not 0"),
        (("ring", 3, 0, 10, 65, 1000), "a reduce has 1 to 64 lanes, not 65"),
        (("ring", 3, 0, 10, 1, 0), "10 elements cannot be divided into segments of 0 bytes"),
        (("direct", 4097, 0, 10, 1, 1000), "a reduce of 4097 peers cannot have a peer number 0"),
    ],
)
def test_invalid_request_is_refused(
    arguments: tuple[Schedule, int, int, int, int, int], what: str
) -> None:
    schedule, peers, me, numel, streams, segment_bytes = arguments
    with pytest.raises(LocalProtocolError) as raised:
        plan(schedule, peers, me, numel, CODEC, streams, segment_bytes)
    assert raised.value.what == what

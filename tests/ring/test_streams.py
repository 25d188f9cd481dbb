"""The number of connections to each neighbour is bounded and grows with the bytes to send."""

from __future__ import annotations

import pytest

from p2ptrain.kernels import codec
from p2ptrain.ring import SCHEDULES, Schedule, plan, streams_for
from p2ptrain.ring.streams import CONNECTIONS_MAX, STREAMS_BEST, WINDOW_BYTES

GB = 1_000_000_000


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("peers", [1, 2, 3, 4, 5, 8, 16, 33])
@pytest.mark.parametrize("payload", [0, 1_000_000, 25_000_000, 10 * GB])
def test_number_of_connections_of_a_peer_is_bounded(
    schedule: Schedule, peers: int, payload: int
) -> None:
    streams = streams_for(schedule, peers, payload)
    int8 = codec("int8", 256)
    most = max(
        len(plan(schedule, peers, me, 256 * peers, int8, 1, 1 << 20).neighbours)
        for me in range(peers)
    )
    assert 1 <= streams <= STREAMS_BEST
    assert streams == 1 or streams * most <= CONNECTIONS_MAX


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("payload", [1_000_000, 7_000_000, 25_000_000])
def test_no_connection_is_opened_without_enough_bytes_to_send(
    schedule: Schedule, payload: int
) -> None:
    """Each connection except the last has at least WINDOW_BYTES to send."""
    int8 = codec("int8", 256)
    numel = payload // 260 * 256
    plans = [plan(schedule, 4, me, numel, int8, 1, 1 << 20) for me in range(4)]
    busiest = max(each.bytes_to(peer) for each in plans for peer in each.neighbours)
    streams = streams_for(schedule, 4, payload)
    assert (streams - 1) * WINDOW_BYTES < busiest


def test_more_bytes_between_two_peers_get_more_connections() -> None:
    found = {mb: streams_for("ring", 4, mb * 1_000_000) for mb in (0, 1, 2, 5, 25, 1000)}
    assert found == {0: 1, 1: 1, 2: 2, 5: STREAMS_BEST, 25: STREAMS_BEST, 1000: STREAMS_BEST}
    # With `direct`, a neighbour gets only the Nth part, and each peer has N − 1 neighbours.
    assert [streams_for("direct", 16, mb * 1_000_000) for mb in (5, 25, 1000)] == [1, 2, 2]

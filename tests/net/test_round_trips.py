"""The kernel tells the round-trip time of a connection, and nothing is sent to learn it."""

from __future__ import annotations

import struct
import sys

import pytest

from p2ptrain.net.host.round_trip import round_trip_s_in
from tests.net.conftest import eventually, networks

UNKNOWN = 0xFFFFFFFF


def tcp_info(smoothed_us: int, shortest_us: int) -> bytes:
    """Return Linux's `struct tcp_info` with these fields, and other bytes in all others."""
    fields = {17: smoothed_us, 37: shortest_us}  # Places of the fields, in units of four bytes.
    return b"".join(struct.pack("=I", fields.get(place, 7_000_000 + place)) for place in range(58))


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        (tcp_info(41_900, 12_300), 0.0123),
        (tcp_info(41_900, UNKNOWN), 0.0419),
        (tcp_info(0, UNKNOWN), None),
        (tcp_info(41_900, 12_300)[:104], None),
        (b"", None),
    ],
    ids=["shortest", "only smoothed", "not measured yet", "old kernel", "nothing"],
)
def test_shortest_time_is_read_from_what_the_kernel_tells(
    told: bytes, seconds: float | None
) -> None:
    assert round_trip_s_in(told) == seconds


async def test_round_trip_is_known_while_peers_are_connected_and_costs_no_message() -> None:
    async with networks(2) as (left, right):
        assert left.round_trip_s(right.peer) is None
        await left.connect(right.addresses()[0])
        await eventually(lambda: left.peer in right.connected())
        measured = [left.round_trip_s(right.peer), right.round_trip_s(left.peer)]
        if sys.platform.startswith("linux"):
            assert all(each is not None and 0 < each < 10 for each in measured)
        else:
            assert measured == [None, None]
        await left.disconnect(right.peer)
        await eventually(lambda: right.peer not in left.connected())
        assert left.round_trip_s(right.peer) is None

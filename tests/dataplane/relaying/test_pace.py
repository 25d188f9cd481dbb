"""Relayed bytes keep to their share of the upload limit, and yield to the node's own bytes."""

from __future__ import annotations

import time
from functools import partial

import pytest

from p2ptrain.dataplane import SendPriority, Uplink
from p2ptrain.dataplane.relaying import Pace
from p2ptrain.dataplane.relaying.pace import BURST_S
from p2ptrain.dataplane.relaying.policy import LIMIT_SHARE
from tests.dataplane.conftest import in_thread
from tests.dataplane.relaying.conftest import MakeTrio

LIMIT = 8e6
"""Upload limit of the relay in bytes per second."""


def test_relayed_bytes_get_a_quarter_of_the_limit(make_trio: MakeTrio) -> None:
    """Two streams together get it. The burst is not counted."""
    trio = make_trio(pace=Pace(Uplink(LIMIT), LIMIT))
    pairs = [trio.connect(stream) for stream in range(2)]
    share = LIMIT_SHARE * LIMIT
    count = round(share / 2)

    def move(number: int) -> float:
        at_ann, at_bob = pairs[number]
        sent = in_thread(lambda: at_ann.send_all(bytes(count)))
        at_bob.receive_into(bytearray(count))
        assert sent() is None
        return time.monotonic()

    began = time.monotonic()
    running = [in_thread(partial(move, number)) for number in range(2)]
    ended = [result() for result in running]
    seconds = max(map(float, map(str, ended))) - began
    rate = (2 * count - BURST_S * share) / seconds
    assert rate <= 1.1 * share


def test_own_bytes_of_the_node_come_first() -> None:
    now = [0.0]
    uplink = Uplink(1000.0, burst_bytes=0, clock=lambda: now[0])
    own = uplink.share(SendPriority.RING)
    pace = Pace(uplink, 1000.0)
    first = own.request_ticket(500)
    assert pace.grant()[0] == 0
    assert own.wait_s(first) == pytest.approx(0.5)
    assert pace.grant()[1] > 0.5


def test_closed_pace_grants_at_once() -> None:
    uplink = Uplink(1000.0)
    pace = Pace(uplink, 1000.0)
    while pace.grant()[0]:
        pass
    pace.close()
    assert pace.grant() == (512, 0.0)

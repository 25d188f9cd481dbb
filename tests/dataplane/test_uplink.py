"""A capped uplink as threads see it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from p2ptrain.dataplane import Rank, Uplink
from p2ptrain.errors import LocalProtocolError


def test_taking_blocks_until_the_bytes_are_paid_for() -> None:
    times = iter([10.0, 10.0, 10.0, 12.0])
    share = Uplink(1000, burst_bytes=0, clock=lambda: next(times)).share(Rank.SWARM)
    ticket = share.ask(2000)
    assert [share.wait_s(ticket), share.wait_s(ticket)] == pytest.approx([2.0, 2.0])
    assert share.wait_s(ticket) == 0.0


def test_who_waits_for_an_uplink_is_let_go_when_it_is_closed() -> None:
    """A node that ends must not wait for minutes until a slice may go to a slow peer."""
    uplink = Uplink(1000)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(uplink.share(rank).take, 10**9) for rank in Rank]
        uplink.close()
        assert [each.result(5.0) for each in waiting] == [None, None]
    uplink.share(Rank.RING).take(10**9)


def test_an_uplink_that_has_no_rate_cannot_be_made() -> None:
    for rate in (0, -1.0, float("nan")):
        with pytest.raises(LocalProtocolError):
            Uplink(rate)

"""A probe finds out whether a libp2p peer answers at an address."""

from __future__ import annotations

import pytest
import trio

from p2ptrain.net.addresses import parse
from p2ptrain.net.faults import DialFailed
from p2ptrain.net.names import Resolver
from p2ptrain.net.prober import probe


async def test_late_connection_gets_no_time_for_an_answer() -> None:
    """On a busy machine, a connection may be made when the probe's time is over."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    clock = iter([0.0, 7.0])
    address = parse(f"/ip4/127.0.0.1/tcp/{port}")
    with pytest.raises(DialFailed) as caught:
        await probe(address, Resolver(1), deadline_s=5.0, clock=lambda: next(clock))
    assert caught.value.code == "NET-SILENT"
    await listener.aclose()

"""A peer that does not answer pings does not delay the checks of other connections."""

from __future__ import annotations

from typing import Any

import trio
from libp2p.abc import INetStream
from libp2p.host.ping import ID as PING
from libp2p.host.ping import PING_LENGTH

from .conftest import DEADLINE_S, host_of, networks


async def test_connections_are_checked_at_the_same_time() -> None:
    """Neither of two peers answers its ping before the other has received one. If they were asked
    in turn, both pings would fail, and libp2p would close both connections.
    """
    asked: set[int] = set()
    both_asked = trio.Event()

    async def answer(stream: INetStream) -> None:
        ping = await stream.read(PING_LENGTH)
        asked.add(id(stream.muxed_conn))
        if len(asked) == 2:
            both_asked.set()
        await both_asked.wait()
        await stream.write(ping)

    async with networks(3) as (left, *others):
        for other in others:
            host_of(other).set_stream_handler(PING, answer)
            await left.connect(other.addresses()[0])
        network: Any = host_of(left).get_network()
        network.connection_config.health_warmup_window = 0.0  # libp2p does not check new ones.
        with trio.fail_after(DEADLINE_S):
            for _ in range(2):  # The first check of a connection only registers it.
                await network._health_monitor._check_all_connections()
        assert len(asked) == 2
        assert left.connected() == {other.peer for other in others}

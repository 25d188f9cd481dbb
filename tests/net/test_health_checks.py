"""Connections that have died are noticed, and a silent peer does not delay the checks of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import trio
from libp2p.abc import INetStream
from libp2p.host.ping import ID as PING
from libp2p.host.ping import PING_LENGTH
from libp2p.peer.id import ID

from p2ptrain.eviction import nobody
from p2ptrain.net.connections import Connections
from p2ptrain.net.host.health_checks import close_if_silent

from .conftest import DEADLINE_S, eventually, everybody, host_of, identity, networks


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


async def test_older_connections_are_checked_when_a_peer_connects_again() -> None:
    """A peer that has a new address connects again, and its older connection is dead. If we dial
    the peer ourselves, nothing is wrong with an older connection."""
    peer, network, checked = identity(1).peer, cast(Any, None), list[object]()

    def connection(*, dialled: bool) -> Any:
        remote = {"get_remote_address": lambda: ("10.0.0.1", 4201)}
        muxed = {"peer_id": ID.from_base58(peer), "is_initiator": dialled, **remote}
        return SimpleNamespace(muxed_conn=SimpleNamespace(**muxed))

    def ignore(what: object) -> None:
        pass

    it = Connections(
        everybody, nobody, drop=ignore, close=ignore, check=checked.append, gone=ignore
    )
    first, second, third = (connection(dialled=dialled) for dialled in (False, True, False))
    await it.connected(network, first)
    await it.connected(network, second)
    assert checked == []
    await it.connected(network, third)
    assert checked == [first, second]


async def test_only_a_connection_without_an_answer_is_closed() -> None:
    async with networks(2) as (left, right):
        await left.connect(right.addresses()[0])
        await eventually(lambda: left.peer in right.connected())
        network: Any = host_of(right).get_network()
        (connection,) = network.get_connections()
        await close_if_silent(connection)
        assert left.peer in right.connected()
        await left.disconnect(right.peer)
        await close_if_silent(connection)
        assert connection.is_closed

"""A node checks that a connected peer listens at an address, and remembers from where peers have
connected."""

from __future__ import annotations

import socket

import pytest
import trio

from p2ptrain.errors import NetworkUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from tests.net.conftest import eventually, identity, networks

ECHO = "/test/echo/1"


def port_of(network: Network) -> int:
    return int(network.addresses()[0].split("/")[4])


async def echo(peer: PeerId, payload: bytes) -> bytes:
    return payload


async def test_peer_proves_where_it_listens_and_its_connection_is_kept() -> None:
    async with networks(2) as (ann, bob):
        for each in (ann, bob):
            each.handle(ECHO, echo)
        await ann.connect(bob.addresses()[0])
        await eventually(lambda: ann.peer in bob.connected())
        before = bob.statistics()["connected"]
        for _ in range(3):
            await bob.prove(ann.peer, "127.0.0.1", port_of(ann), deadline_s=5.0)
        assert bob.statistics()["connected"] == before == 1
        for here, there in ((ann, bob), (bob, ann)):
            assert await here.request(there.peer, ECHO, b"hi", deadline_s=5.0) == b"hi"


async def test_another_peer_at_the_address_is_no_proof() -> None:
    async with networks(2) as (ann, bob):
        with pytest.raises(NetworkUnreachable) as raised:
            await bob.prove(identity(3).peer, "127.0.0.1", port_of(ann), deadline_s=5.0)
        assert raised.value.code == "NET-WRONG-ID"


async def test_closed_and_silent_ports_are_told_apart() -> None:
    async with networks(1) as (ann,):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            with pytest.raises(NetworkUnreachable) as raised:
                await ann.prove(identity(3).peer, "127.0.0.1", port, deadline_s=0.3)
            assert raised.value.code == "NET-SILENT"
        with pytest.raises(NetworkUnreachable) as raised:
            await ann.prove(identity(3).peer, "127.0.0.1", port, deadline_s=5.0)
        assert raised.value.code == "NET-REFUSED"


async def test_only_the_side_that_was_dialled_remembers_an_arrival() -> None:
    async with networks(2) as (ann, bob):
        began = trio.current_time()
        await ann.connect(bob.addresses()[0])
        await eventually(lambda: ann.peer in bob.connected())
        assert ann.arrivals() == {}
        (arrival,) = bob.arrivals().items()
        assert arrival[0] == "127.0.0.1"
        assert began <= arrival[1] <= trio.current_time()
        assert (ann.host_of(bob.peer), bob.host_of(ann.peer)) == ("127.0.0.1", "127.0.0.1")
        await ann.disconnect(bob.peer)
        await eventually(lambda: ann.peer not in bob.connected())
        assert bob.host_of(ann.peer) == ""
        assert "127.0.0.1" in bob.arrivals(), "the arrival stays known after the connection"

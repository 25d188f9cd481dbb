"""A node listens on IPv4 and IPv6 at one port, unless its user gives an address."""

from __future__ import annotations

import psutil
import pytest

from p2ptrain.errors import NetworkUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.net.addresses import Address, parse
from p2ptrain.net.listening import dialable, has_ipv6, outward_host

from .conftest import DEADLINE_S, echo, eventually, networks

LOOPBACKS = [
    host
    for host in ("127.0.0.1", "::1")
    if host in [each.address for every in psutil.net_if_addrs().values() for each in every]
]
"""The loopback addresses of this machine, which may lack IPv6."""


def at(host: str, port: int, peer: PeerId | None = None) -> str:
    return str(Address("ip6" if ":" in host else "ip4", host, port, peer))


async def apart(left: Network, right: Network) -> None:
    await left.disconnect(right.peer)
    await eventually(lambda: not left.connected() | right.connected())


async def test_default_is_every_address_at_one_port() -> None:
    async with networks(2, listen=None) as (left, right):
        bound = [parse(address) for address in right.listening()]
        assert [each.host for each in bound] == ["0.0.0.0", "::"][: 1 + has_ipv6()]
        assert {parse(text).port for text in right.addresses()} == {each.port for each in bound}
        assert len({each.port for each in bound}) == 1
        for host in LOOPBACKS:
            await left.connect(at(host, bound[0].port, right.peer))
            assert left.host_of(right.peer) == host
            await eventually(lambda: left.peer in right.connected())
            assert right.host_of(left.peer) == host
            await apart(left, right)


async def test_both_versions_may_use_one_given_port() -> None:
    async with networks(1) as (network,):
        port = parse(network.addresses()[0]).port
    listen = [at(host, port) for host in LOOPBACKS]
    async with networks(1, listen=listen) as (network,):
        assert network.listening() == listen
        assert network.addresses() == [f"{each}/p2p/{network.peer}" for each in listen]


async def test_given_address_of_ipv4_does_not_listen_on_ipv6() -> None:
    async with networks(2, listen=["/ip4/0.0.0.0/tcp/0"]) as (left, right):
        (bound,) = right.listening()
        with pytest.raises(NetworkUnreachable):
            await left.connect(at("::1", parse(bound).port, right.peer))


@pytest.mark.parametrize("without", [(), ("127.0.0.1",)])
async def test_ipv6_is_used_if_ipv4_does_not_answer(without: tuple[str, ...]) -> None:
    async with networks(2, listen=None) as (left, right):
        port = parse(right.listening()[0]).port
        live = [host for host in LOOPBACKS if host not in without]
        told = [(host, 9) for host in without] + [(host, port) for host in reversed(live)]
        left.remember(right.peer, [at(*place) for place in told])
        await left.connect_peer(right.peer)
        assert left.host_of(right.peer) == live[0]


async def test_connections_of_an_address_that_is_gone_are_closed() -> None:
    async with networks(2) as (left, right):
        await left.connect(right.addresses()[0])
        await eventually(lambda: left.peer in right.connected())
        left.close_connections_except(["127.0.0.1"])
        right.handle("/test/1", echo)
        assert await left.request(right.peer, "/test/1", b"x", deadline_s=DEADLINE_S) == b"x"
        left.close_connections_except(["192.168.1.5"])
        await eventually(lambda: not left.connected() | right.connected())


def test_unspecified_addresses_become_addresses_of_this_machine() -> None:
    four, six = Address("ip4", "0.0.0.0", 4201), Address("ip6", "::", 4201)
    far = [host for host in (outward_host(six=False), outward_host(six=True)) if host]
    assert [each.host for each in dialable([four, six])] == [*far, "127.0.0.1"]
    assert [each.host for each in dialable([six])][-1] == "::1"
    given = Address("ip6", "2606:1::5", 4201)
    assert dialable([given]) == [given]
    assert dialable([]) == []

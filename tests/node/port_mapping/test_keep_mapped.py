"""A node keeps its ports open on its router, and closes them at its end. The routers are real UDP
sockets on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address, ip_address
from pathlib import Path

import pytest
import trio

from p2ptrain.node.port_mapping import keep_mapped
from p2ptrain.node.port_mapping.keep_mapped import REMOVE_S, keep_ports_mapped, nonce_of
from p2ptrain.node.state.port_mappings import MappedAddress
from p2ptrain.portmap import Gateway, Kind, NoGateway, Router
from p2ptrain.portmap.gateway import Version
from tests.node.rig import ANN, BOB, Rig, rig, settled
from tests.portmap.fake_gateway import (
    GATEWAY,
    OUR_HOST,
    FakeGateway,
    fake_gateway,
    natpmp_response,
    pcp_response,
)

CONTROL, DATA = 4201, 4202
LAN = f"/ip4/192.168.1.5/tcp/{CONTROL}/p2p/12D3KooW"
PUBLIC_ADDRESS = IPv4Address("8.8.8.8")
IN_PCP = bytes(10) + b"\xff\xff" + PUBLIC_ADDRESS.packed
OTHER_HOST = "127.0.0.10"
OTHER_GATEWAY = Gateway(IPv4Address(OTHER_HOST), IPv4Address(OUR_HOST))


@dataclass
class Listening:
    """In place of the data plane's listener: only its address matters here."""

    address: tuple[str, int] = ("0.0.0.0", DATA)


@dataclass
class Network:
    """The network that the machine is in: its gateway can change."""

    gateway: Gateway | NoGateway = GATEWAY
    looked: list[Version] = field(default_factory=list)
    asked: list[Gateway] = field(default_factory=list)
    ports: dict[Gateway, int] = field(default_factory=dict)

    def find(self, version: Version) -> Gateway | NoGateway:
        self.looked.append(version)
        return self.gateway

    def router(self, gateway: Gateway) -> Router:
        self.asked.append(gateway)
        port = self.ports[gateway]
        return Router(gateway, port=port, search_at=(str(gateway.address), port))


def grants(data: bytes) -> list[bytes]:
    return [pcp_response(data, address=IN_PCP)]


def closed(fake: FakeGateway) -> list[int]:
    """Return the internal ports that the node has closed by PCP."""
    closing = [data for data in fake.received if len(data) == 60 and data[4:8] == bytes(4)]
    return sorted(int.from_bytes(data[40:42], "big") for data in closing)


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[Rig]:
    """A node that listens on all addresses and may ask its router."""
    async with rig(folder) as r:
        r.network.listens = [LAN]
        r.plug(listener=Listening())
        r.configure(port_mapping=True)
        yield r


@asynccontextmanager
async def keeping(r: Rig, around: Network) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(
                keep_ports_mapped,
                r.context,
                find=around.find,
                make_router=around.router,
                look_s=0.01,
            )
        )
        yield
        nursery.cancel_scope.cancel()


def is_mapped(r: Rig) -> Callable[[], bool]:
    return lambda: r.context.port_mappings.verdict().kind is Kind.MAPPED


async def test_both_ports_are_opened_and_closed_at_the_end(tmp_path: Path) -> None:
    async with node(tmp_path) as r:
        with fake_gateway(grants) as fake:
            around = Network(ports={GATEWAY: fake.port})
            async with keeping(r, around):
                await settled(is_mapped(r))
                mappings = r.context.port_mappings
                assert mappings.verdict().words == (
                    "your router opened TCP 4201 and 4202 by PCP, renewed every 30 min"
                )
                assert mappings.candidate() == MappedAddress(PUBLIC_ADDRESS, CONTROL, DATA)
                assert closed(fake) == []
            assert closed(fake) == [CONTROL, DATA]
            assert r.context.port_mappings.candidate() is None
    assert [record["result"] for record in r.said("port-mapping")] == ["asking", "mapped"]
    assert r.said("ports-closed") == [{"event": "ports-closed", "closed": 2, "opened": 2}]


async def test_node_behind_a_carriers_nat_offers_no_candidate(tmp_path: Path) -> None:
    def carrier(data: bytes) -> list[bytes]:
        if data[0]:
            return [bytes.fromhex("00 81 0001 000003e8")]
        return [natpmp_response(data, address="100.64.0.2")]

    async with node(tmp_path) as r:
        with fake_gateway(carrier) as fake:
            async with keeping(r, Network(ports={GATEWAY: fake.port})):
                mappings = r.context.port_mappings
                await settled(lambda: len(mappings.open_ports()) == 2)
                assert mappings.verdict().kind is Kind.CARRIER
                assert mappings.candidate() is None
                mappings.note_observed([ip_address("100.64.0.2")])
                assert mappings.candidate() == MappedAddress(
                    ip_address("100.64.0.2"), CONTROL, DATA
                )


async def test_new_network_means_a_new_router(tmp_path: Path) -> None:
    async with node(tmp_path) as r:
        with fake_gateway(grants) as old, fake_gateway(grants, OTHER_HOST) as new:
            around = Network(ports={GATEWAY: old.port, OTHER_GATEWAY: new.port})
            async with keeping(r, around):
                await settled(is_mapped(r))
                around.gateway = NoGateway("this machine has no IPv4 router")
                await settled(lambda: r.context.port_mappings.verdict().kind is Kind.NONE)
                assert r.context.port_mappings.candidate() is None
                around.gateway = OTHER_GATEWAY
                await settled(is_mapped(r))
            assert (closed(old), closed(new)) == ([CONTROL, DATA], [CONTROL, DATA])
            assert around.asked == [GATEWAY, OTHER_GATEWAY]


async def test_router_that_falls_silent_delays_the_end_by_seconds_only(tmp_path: Path) -> None:
    async with node(tmp_path) as r:
        with fake_gateway(grants) as fake:
            async with keeping(r, Network(ports={GATEWAY: fake.port})):
                await settled(is_mapped(r))
                fake.script = lambda data: []
                began = trio.current_time()
            assert trio.current_time() - began < REMOVE_S + 20


@pytest.mark.parametrize(
    ("changes", "listens", "words"),
    [
        ({"port_mapping": False}, [LAN], keep_mapped.SWITCHED_OFF),
        ({"announce": ("/dns4/a.example/tcp/4201",)}, [LAN], keep_mapped.ANNOUNCED),
        ({}, ["/ip4/127.0.0.1/tcp/4201"], keep_mapped.NOT_OUTSIDE),
    ],
    ids="switched-off announced loopback".split(),
)
async def test_nothing_is_sent_without_need(
    tmp_path: Path, changes: dict[str, object], listens: list[str], words: str
) -> None:
    async with node(tmp_path) as r:
        r.configure(**changes)
        r.network.listens = listens
        r.plug(listener=Listening(("127.0.0.1", DATA)))
        around = Network()
        await keep_ports_mapped(r.context, find=around.find, make_router=around.router)
        assert (around.looked, around.asked) == ([], [])
        assert r.context.port_mappings.verdict().words == words


async def test_machine_with_a_public_address_asks_nobody(tmp_path: Path) -> None:
    async with node(tmp_path) as r:
        around = Network(Gateway(IPv4Address("8.8.8.1"), PUBLIC_ADDRESS))
        async with keeping(r, around):
            await settled(lambda: len(around.looked) > 2)
        assert around.asked == []
        assert r.context.port_mappings.verdict().words == keep_mapped.PUBLIC


async def test_tests_and_the_demo_ask_nobody(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert not r.context.config.port_mapping
        await keep_ports_mapped(r.context)
        assert r.context.port_mappings.verdict().words == keep_mapped.SWITCHED_OFF


def test_nonce_is_the_same_after_a_restart_and_differs_between_nodes_and_ports() -> None:
    assert nonce_of(ANN, CONTROL) == nonce_of(ANN, CONTROL)
    assert len({nonce_of(who, port) for who in (ANN, BOB) for port in (CONTROL, DATA)}) == 4
    assert len(nonce_of(ANN, CONTROL)) == 12

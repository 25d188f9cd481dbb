"""The addresses of its data plane that a node tells others."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from p2ptrain.node.gossip.data_address_warning import warn_of_data_address
from p2ptrain.node.gossip.gossip import describe
from p2ptrain.node.gossip.own_addresses import OwnAddresses, own_addresses
from p2ptrain.node.gossip.own_endpoint import own_candidates, own_endpoint, told_addresses
from p2ptrain.node.state.port_mappings import OwnPorts, RouterMapping
from p2ptrain.peers.candidates import candidates_in
from p2ptrain.peers.heartbeat import ADDRESSES_MAX, decode, encode
from p2ptrain.peers.reach_evidence import PortsReached
from p2ptrain.portmap import OpenPort, Standing
from p2ptrain.portmap.values import Protocol
from tests.node.rig import Rig, rig

HOME = "198.51.100.7"
OWN = OwnAddresses(("192.168.1.5", "2001:4860:4860::8888"), ("192.168.1.0/24",), "192.168.1.5")


class Everywhere:
    """Replaces a listener that is bound to all addresses of `family`."""

    def __init__(self, host: str) -> None:
        self.address = host, 4202


def texts(r: Rig) -> list[str]:
    return [str(each) for each in own_candidates(r.context, OWN)]


async def test_node_on_loopback_has_no_further_addresses(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert texts(r) == []
        assert own_endpoint(r.context, OWN) == r.context.plane.endpoint
        assert describe(r.context, 1, 1).addresses == tuple(r.network.addresses())


async def test_lan_and_observed_addresses_are_listed(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.plug(listener=Everywhere("0.0.0.0"))
        assert texts(r) == ["/ip4/192.168.1.5/tcp/4202/lan-data"]
        r.context.own_heartbeat.reach.external_host = HOME
        observed = f"/ip4/{HOME}/tcp/4202/observed-data"
        assert texts(r) == ["/ip4/192.168.1.5/tcp/4202/lan-data", observed]


async def test_ipv6_is_listed_only_if_the_data_plane_listens_there(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.plug(listener=Everywhere("::"))
        assert texts(r)[1:] == ["/ip6/2001:4860:4860::8888/tcp/4202/ipv6-data"]


async def test_machine_without_ipv4_tells_its_ipv6_addresses(tmp_path: Path) -> None:
    only6 = OwnAddresses(("fe80::1", "fd00::5", "2606:1::5"), (), "", "2606:1::5")
    async with rig(tmp_path) as r:
        r.plug(listener=Everywhere("::"))
        told = [str(each) for each in own_candidates(r.context, only6)]
        assert told == ["/ip6/fd00::5/tcp/4202/lan-data", "/ip6/2606:1::5/tcp/4202/ipv6-data"]
        assert own_endpoint(r.context, only6).host == "2606:1::5"


async def test_new_address_replaces_the_old_one(tmp_path: Path) -> None:
    moved = OwnAddresses(("10.9.9.9",), ("10.9.9.0/24",), "10.9.9.9")
    async with rig(tmp_path) as r:
        r.plug(
            listener=Everywhere("0.0.0.0"),
            endpoint=replace(r.context.plane.endpoint, host="192.168.1.5"),
        )
        assert own_endpoint(r.context, OWN).host == "192.168.1.5"
        assert own_endpoint(r.context, moved).host == "10.9.9.9"
        r.plug(endpoint=replace(r.context.plane.endpoint, host="8.8.8.8"))
        assert own_endpoint(r.context, moved).host == "10.9.9.9"
        r.configure(announce=("/ip4/8.8.8.8/tcp/4201",))
        assert own_endpoint(r.context, moved).host == "8.8.8.8", "its user knows better"


async def test_endpoint_is_the_address_that_most_peers_can_dial(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.plug(listener=Everywhere("0.0.0.0"))
        reach = r.context.own_heartbeat.reach
        before = r.context.plane.endpoint
        reach.external_host = HOME
        assert own_endpoint(r.context, OWN).host == "192.168.1.5", "no loopback address helps"
        reach.ports = PortsReached(control=None, data=True)
        assert own_endpoint(r.context, OWN).host == HOME
        r.configure(data_announce=("203.0.113.7", 5202))
        told = own_endpoint(r.context, OWN)
        assert (told.host, told.port, told.certificate_der) == (
            "203.0.113.7",
            5202,
            before.certificate_der,
        )
        assert "/ip4/203.0.113.7/tcp/5202/announced-data" in texts(r)


async def test_port_that_the_router_opened_is_announced_once_members_have_reached_it(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        r.plug(listener=Everywhere("0.0.0.0"))
        opened = OpenPort(4202, ip_address(HOME), 50202, Protocol.UPNP, 1800.0)
        standing = Standing((4202,), (opened,))
        r.context.port_mappings.routers[4] = RouterMapping(OwnPorts(0, 4202), standing)
        reach = r.context.own_heartbeat.reach
        reach.external_host = HOME
        assert texts(r)[-1] == f"/ip4/{HOME}/tcp/4202/observed-data"
        reach.ports = PortsReached(control=None, data=True)
        assert texts(r)[-1] == f"/ip4/{HOME}/tcp/50202/observed-data"
        assert (own_endpoint(r.context, OWN).host, own_endpoint(r.context, OWN).port) == (
            HOME,
            50202,
        )


async def test_data_addresses_have_room_beside_many_control_addresses(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.plug(listener=Everywhere("0.0.0.0"))
        r.network.listens = [f"/ip4/203.0.113.{number}/tcp/4201" for number in range(9)]
        r.context.own_heartbeat.reach.external_host = HOME
        told = told_addresses(r.context)
        assert len(told) == ADDRESSES_MAX
        beat = decode(encode(describe(r.context, 1, 1)))
        assert candidates_in(beat.addresses) == own_candidates(r.context)


def test_own_addresses_are_those_of_the_interfaces() -> None:
    own = own_addresses()
    assert "127.0.0.1" in own.hosts
    assert own.lan_host in ("", *own.hosts)


@pytest.mark.parametrize(
    ("announce", "data_announce", "warned"),
    [
        (("/dns4/seed.example/tcp/4201",), None, True),
        (("/ip4/10.0.0.7/tcp/4201", "/dns/seed.example/tcp/4201"), None, True),
        (("/dns4/seed.example/tcp/4201",), ("198.51.100.9", 4202), False),
        (("/ip4/10.0.0.7/tcp/4201",), None, False),
        ((), None, False),
    ],
)
async def test_private_data_address_beside_an_announced_name_is_pointed_out(
    tmp_path: Path,
    announce: tuple[str, ...],
    data_announce: tuple[str, int] | None,
    warned: bool,
) -> None:
    async with rig(tmp_path) as r:
        r.configure(announce=announce, data_announce=data_announce)
        warn_of_data_address(r.context)
        codes = [caution.code for caution in r.context.alerts.warnings.values()]
        assert codes == ["ADDR-DATA-PRIVATE"] * warned
        r.plug(listener=Everywhere("0.0.0.0"))
        reach = r.context.own_heartbeat.reach
        reach.external_host, reach.ports = "8.8.8.8", PortsReached(control=None, data=True)
        warn_of_data_address(r.context)
        assert not r.context.alerts.warnings, "others reach its data port at a public address"

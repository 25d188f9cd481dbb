"""Only ports that listen on more than this machine are worth asking a router for."""

from __future__ import annotations

import pytest

from p2ptrain.node.port_mapping.own_ports import own_ports
from p2ptrain.node.state.port_mappings import OwnPorts
from p2ptrain.portmap.gateway import Version

LAN = "/ip4/192.168.1.5/tcp/4201/p2p/12D3KooW"
LAN6 = "/ip6/2001:db8::5/tcp/4301/p2p/12D3KooW"
EVERYWHERE = ["/ip4/0.0.0.0/tcp/4201", "/ip6/::/tcp/4201"]
LOOPBACK = "/ip4/127.0.0.1/tcp/4201/p2p/12D3KooW"
LOOPBACK6 = "/ip6/::1/tcp/4201/p2p/12D3KooW"


@pytest.mark.parametrize(
    ("control", "data", "found"),
    [
        ([LAN], "0.0.0.0", {4: OwnPorts(4201, 4202)}),
        ([LOOPBACK, LAN], "0.0.0.0", {4: OwnPorts(4201, 4202)}),
        ([LAN, LAN6], "::", {4: OwnPorts(4201, 4202), 6: OwnPorts(4301, 4202)}),
        ([LAN], "192.168.1.5", {4: OwnPorts(4201, 4202)}),
        ([LAN], "127.0.0.1", {4: OwnPorts(4201, 0)}),
        ([LAN6], "2001:db8::5", {6: OwnPorts(4301, 4202)}),
        ([LOOPBACK, LOOPBACK6], "127.0.0.1", {}),
        ([LOOPBACK], "::1", {}),
        ([], "0.0.0.0", {4: OwnPorts(0, 4202)}),
        (EVERYWHERE, "::", {4: OwnPorts(4201, 4202), 6: OwnPorts(4201, 4202)}),
        (EVERYWHERE[:1], "0.0.0.0", {4: OwnPorts(4201, 4202)}),
        (["/dns4/seed.example/tcp/4201", "/", ""], "127.0.0.1", {}),
    ],
)
def test_ports_on_loopback_are_left_out(
    control: list[str], data: str, found: dict[Version, OwnPorts]
) -> None:
    assert own_ports(control, (data, 4202)) == found

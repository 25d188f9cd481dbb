"""The default gateway is read from the kernel's files; other systems give a reason in words."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.portmap.gateway import Gateway, NoGateway, best_ipv4, best_ipv6, find_gateway

HEADER = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
LAN = "eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
WIRED = "eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
WIRELESS = "wlan0\t00000000\tFE01A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
DOWN = "eth1\t00000000\t0101A8C0\t0002\t0\t0\t0\t00000000\t0\t0\t0\n"
TUNNEL = "tun0\t00000000\t00000000\t0001\t0\t0\t50\t00000000\t0\t0\t0\n"

ZEROS = "0" * 32
ROUTER = "fe800000000000000000000000000001"
IPV6 = f"{ZEROS} 00 {ZEROS} 00 {ROUTER} 00000400 00000001 00000000 00000003 eth0\n"
IPV6_LAN = f"20010db8{ZEROS[8:]} 40 {ZEROS} 00 {ZEROS} 00000100 00000001 00000000 00000001 eth0\n"
IPV6_NONE = f"{ZEROS} 00 {ZEROS} 00 {ZEROS} ffffffff 00000001 00000000 00200200 lo\n"


def test_default_gateway_with_the_lowest_metric_is_chosen() -> None:
    expected = IPv4Address("192.168.1.1"), "eth0"
    assert best_ipv4(HEADER + LAN + WIRELESS + WIRED) == expected
    assert best_ipv6(IPV6_LAN + IPV6 + IPV6_NONE) == (IPv6Address("fe80::1"), "eth0")


def test_routes_without_a_gateway_do_not_count() -> None:
    assert best_ipv4(HEADER + LAN + DOWN + TUNNEL) is None
    assert best_ipv6(IPV6_LAN + IPV6_NONE) is None
    assert best_ipv4("") is None
    assert best_ipv6("") is None


@given(st.text(alphabet="0123456789abcdefg \t\n-", max_size=300))
def test_no_text_raises(text: str) -> None:
    best_ipv4(HEADER + text)
    best_ipv6(text)


def test_own_address_is_the_one_that_the_gateway_sees(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    routes.write_text(HEADER + WIRED.replace("0101A8C0", "0900007F"))
    expected = Gateway(IPv4Address("127.0.0.9"), IPv4Address("127.0.0.1"), "eth0")
    assert find_gateway(4, routes) == expected


def test_missing_router_is_told_in_words(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    assert find_gateway(4, routes) == NoGateway(
        f"this system does not show its routes in {routes}, so no router is known"
    )
    routes.write_text(HEADER + LAN)
    assert find_gateway(4, routes) == NoGateway("this machine has no IPv4 router")
    assert find_gateway(6, routes) == NoGateway("this machine has no IPv6 router")


def test_link_local_gateway_is_reached_through_its_interface() -> None:
    gateway = Gateway(IPv6Address("fe80::1"), IPv6Address("2001:db8::5"), "lo")
    assert gateway.sockaddr(5351) == ("fe80::1", 5351, 0, 1)

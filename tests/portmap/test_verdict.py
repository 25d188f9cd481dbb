"""The verdict says in words what the router opened, and whether another NAT makes it useless."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from p2ptrain.portmap.lease import OpenPort, Standing
from p2ptrain.portmap.values import IPAddress, Protocol
from p2ptrain.portmap.verdict import Kind, Verdict, candidates, judge

LOCAL = IPv4Address("192.168.1.5")
OUTSIDE, OTHER = IPv4Address("8.8.8.8"), IPv4Address("9.9.9.9")


def standing(*ports: int, address: IPAddress = OUTSIDE, reason: str = "") -> Standing:
    opened = (OpenPort(port, address, port, Protocol.UPNP, 1800.0) for port in ports)
    return Standing((4201, 4202), tuple(opened), reason)


BOTH = standing(4201, 4202)


def test_open_ports_are_told_with_their_protocol_and_renewal() -> None:
    words = "your router opened TCP 4201 and 4202 by UPnP, renewed every 30 min"
    assert judge(BOTH, (), LOCAL) == Verdict(Kind.MAPPED, words)
    assert judge(BOTH, (OUTSIDE,), LOCAL) == Verdict(Kind.MAPPED, words)


def test_other_external_port_is_told() -> None:
    opened = (OpenPort(4201, OUTSIDE, 50_001, Protocol.PCP, 1800.0),)
    assert judge(Standing((4201,), opened), (), LOCAL).words == (
        "your router opened TCP 50001 (your port 4201) by PCP, renewed every 30 min"
    )


@pytest.mark.parametrize("address", ["192.168.0.2", "10.1.2.3", "172.16.9.9", "100.64.0.2"])
def test_private_or_shared_external_address_means_another_nat(address: str) -> None:
    behind = standing(4201, 4202, address=ip_address(address))
    verdict = judge(behind, (OUTSIDE,), LOCAL)
    assert verdict == Verdict(
        Kind.CARRIER,
        f"your router opened TCP 4201 and 4202 by UPnP, but its own address {address} is not "
        "public: your provider has another NAT, so peers cannot reach them",
    )
    assert candidates(verdict, behind) == {}


def test_external_address_that_no_member_sees_means_another_nat() -> None:
    verdict = judge(BOTH, (OTHER, LOCAL), LOCAL)
    assert verdict.kind is Kind.CARRIER
    assert "peers see you at 9.9.9.9, not at its address 8.8.8.8" in verdict.words


def test_one_member_that_sees_the_routers_address_overrules_others() -> None:
    assert judge(BOTH, (OTHER, OUTSIDE), LOCAL).kind is Kind.MAPPED
    behind = standing(4201, 4202, address=IPv4Address("10.77.1.1"))
    assert judge(behind, (IPv4Address("10.77.1.1"),), LOCAL).kind is Kind.MAPPED


def test_members_in_the_same_network_say_nothing_about_the_router() -> None:
    assert judge(BOTH, (LOCAL,), LOCAL).kind is Kind.MAPPED


def test_pinhole_has_our_own_address() -> None:
    own = IPv6Address("2001:db8::5")
    assert judge(standing(4201, 4202, address=own), (OUTSIDE,), own).kind is Kind.MAPPED


def test_missing_port_is_named_with_the_reason_and_the_fix() -> None:
    half = standing(4201, reason="UPnP: it has no room")
    verdict = judge(half, (), LOCAL)
    assert verdict == Verdict(
        Kind.HALF,
        "your router opened TCP 4201 by UPnP, but not TCP 4202 (UPnP: it has no room); "
        "if peers cannot reach you, forward TCP 4202 to 192.168.1.5 on your router",
    )
    assert candidates(verdict, half) == {4201: (OUTSIDE, 4201)}


def test_router_that_opens_nothing_is_told_with_the_fix() -> None:
    assert judge(standing(reason="PCP: it does not answer"), (), LOCAL) == Verdict(
        Kind.NONE,
        "your router did not open TCP 4201 and 4202 (PCP: it does not answer); "
        "if peers cannot reach you, forward TCP 4201 and 4202 to 192.168.1.5 on your router",
    )


def test_missing_replies_are_told() -> None:
    asking = Standing((4201, 4202), asking=True)
    words = "this node is asking your router to open TCP 4201 and 4202"
    assert judge(asking, (), LOCAL) == Verdict(Kind.ASKING, words)


def test_router_without_a_public_address_counts_as_blocked_by_the_carrier() -> None:
    homeless = Standing((4201, 4202), (), "NAT-PMP: it has no public address", no_address=True)
    verdict = judge(homeless, (), LOCAL)
    assert verdict.kind is Kind.CARRIER
    assert "ask your provider for a public IPv4 address" in verdict.words

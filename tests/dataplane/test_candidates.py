"""A node calls only addresses at which the requesting peer is seen, and never its own network."""

from __future__ import annotations

import random

import pytest

from p2ptrain.dataplane.candidates import (
    STREAMS_MAX,
    ExternalAddress,
    Scope,
    Sightings,
    refusal,
    scope_of,
)
from p2ptrain.errors import RemoteProtocolError

US, PEER, THIRD = "198.51.100.7", "203.0.113.9", "192.0.2.44"
PUBLIC_US, PUBLIC_PEER, PUBLIC_THIRD = "8.8.4.4", "9.9.9.9", "1.1.1.1"


def allowed(host: str, sightings: Sightings, port: int = 50000) -> bool:
    return refusal([ExternalAddress(host, port)], sightings) == ""


def seen(
    *, by_us: str = "", by_forwarder: str = "", own: str = PUBLIC_US, gateway: str = ""
) -> Sightings:
    lists = (frozenset(each.split()) for each in (by_us, by_forwarder, own, gateway))
    return Sightings(*lists)


def test_peer_is_called_only_where_it_is_seen() -> None:
    assert allowed(PUBLIC_PEER, seen(by_us=PUBLIC_PEER))
    assert allowed(PUBLIC_PEER, seen(by_forwarder=PUBLIC_PEER))
    assert not allowed(PUBLIC_THIRD, seen(by_us=PUBLIC_PEER, by_forwarder=PUBLIC_PEER))
    assert not allowed(PUBLIC_PEER, seen())


def test_one_address_of_a_third_party_spoils_the_whole_request() -> None:
    good = [ExternalAddress(PUBLIC_PEER, port) for port in range(2000, 2003)]
    assert refusal(good, seen(by_us=PUBLIC_PEER)) == ""
    assert "nobody sees" in refusal(
        [*good, ExternalAddress(PUBLIC_THIRD, 2000)], seen(by_us=PUBLIC_PEER)
    )


@pytest.mark.parametrize(
    "host",
    "0.0.0.0 224.0.0.1 255.255.255.255 240.0.0.1 169.254.1.1 127.0.0.1 :: ff02::1 ::1".split(),
)
def test_addresses_that_no_remote_peer_has_are_never_called(host: str) -> None:
    """Not even if we believe that we see the peer there."""
    assert not allowed(host, seen(by_us=host, by_forwarder=host))


def test_own_gateway_is_never_called() -> None:
    sightings = seen(by_us="192.168.1.1", own="192.168.1.2", gateway="192.168.1.1")
    assert not allowed("192.168.1.1", sightings)
    assert allowed("192.168.1.3", seen(by_us="192.168.1.3", own="192.168.1.2"))


def test_forwarder_cannot_make_us_call_a_private_address() -> None:
    """The same address is another machine in our network."""
    assert not allowed("192.168.1.3", seen(by_forwarder="192.168.1.3"))
    assert not allowed("100.64.0.3", seen(by_forwarder="100.64.0.3"))


def test_run_on_a_private_network_uses_private_addresses() -> None:
    assert allowed("10.77.1.2", seen(by_forwarder="10.77.1.2", own="10.77.1.1"))


def test_run_on_one_machine_uses_loopback() -> None:
    assert allowed("127.0.0.3", seen(by_us="127.0.0.3", own="127.0.0.2"))
    assert not allowed("127.0.0.3", seen(by_us="127.0.0.3", own="10.77.1.1"))


def test_peer_may_use_any_address_of_its_ipv6_network() -> None:
    assert allowed("2a00:1:2:3::5", seen(by_us="2a00:1:2:3:ffff::1"))
    assert not allowed("2a00:1:2:4::5", seen(by_us="2a00:1:2:3:ffff::1"))


@pytest.mark.parametrize("count", [0, STREAMS_MAX + 1])
def test_request_for_no_stream_or_too_many_is_refused(count: int) -> None:
    asked = [ExternalAddress(PUBLIC_PEER, 2000 + number) for number in range(count)]
    assert refusal(asked, seen(by_us=PUBLIC_PEER)) != ""


@pytest.mark.parametrize("port", [0, 22, 1023, 65536])
def test_low_port_cannot_be_named(port: int) -> None:
    with pytest.raises(RemoteProtocolError):
        ExternalAddress(PUBLIC_PEER, port)


@pytest.mark.parametrize("seed", range(20))
def test_no_draw_of_addresses_breaks_the_rule(seed: int) -> None:
    """The rule once more, as a second implementation that looks at one address at a time."""
    draw = random.Random(seed)
    hosts = [US, PEER, THIRD, PUBLIC_PEER, PUBLIC_THIRD, "127.0.0.1", "10.0.0.1", "224.0.0.9"]
    for _ in range(200):
        by_us, forwarded, own, gateways = (
            frozenset(draw.sample(hosts, draw.randint(0, 3))) for _ in range(4)
        )
        asked = [ExternalAddress(draw.choice(hosts), 4000) for _ in range(draw.randint(1, 3))]
        if refusal(asked, Sightings(by_us, forwarded, own, gateways)) == "":
            narrowest = min((scope_of(host) for host in own), default=Scope.PUBLIC)
            for each in asked:
                assert each.host in by_us | forwarded
                assert each.host not in gateways | {"224.0.0.9"}
                assert scope_of(each.host) >= narrowest or each.host in by_us
                assert each.host != "127.0.0.1" or narrowest is Scope.THIS_MACHINE

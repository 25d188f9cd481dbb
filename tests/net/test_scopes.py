"""Each address has a scope, within which it can be dialled. If a dial of a local address fails, the
message mentions the scope."""

from __future__ import annotations

import pytest

from p2ptrain.cli.error_codes import CODES
from p2ptrain.errors import NetworkUnreachable
from p2ptrain.identity import Identity
from p2ptrain.net.addresses import parse
from p2ptrain.net.faults import DialFailed, none_answered
from p2ptrain.net.scopes import AddressScope, scope_of

PEER = Identity.from_seed(b"p" * 32).peer


@pytest.mark.parametrize(
    ("place", "scope"),
    [
        ("/ip4/127.0.0.1", AddressScope.LOOPBACK),
        ("/ip4/127.9.9.9", AddressScope.LOOPBACK),
        ("/ip4/0.0.0.0", AddressScope.LOOPBACK),
        ("/ip6/::1", AddressScope.LOOPBACK),
        ("/ip6/::", AddressScope.LOOPBACK),
        ("/ip6/::ffff:127.0.0.1", AddressScope.LOOPBACK),
        ("/ip4/10.0.0.5", AddressScope.PRIVATE),
        ("/ip4/172.16.0.1", AddressScope.PRIVATE),
        ("/ip4/172.32.0.1", AddressScope.PUBLIC),
        ("/ip4/192.168.1.7", AddressScope.PRIVATE),
        ("/ip4/169.254.1.1", AddressScope.PRIVATE),
        ("/ip6/::ffff:10.0.0.5", AddressScope.PRIVATE),
        ("/ip6/fe80::1", AddressScope.PRIVATE),
        ("/ip6/fd00::1", AddressScope.PRIVATE),
        ("/ip4/100.64.0.1", AddressScope.SHARED),
        ("/ip4/100.127.255.255", AddressScope.SHARED),
        ("/ip4/100.63.255.255", AddressScope.PUBLIC),
        ("/ip4/100.128.0.0", AddressScope.PUBLIC),
        ("/ip4/192.0.2.1", AddressScope.EXAMPLE),
        ("/ip4/198.51.100.1", AddressScope.EXAMPLE),
        ("/ip4/203.0.113.7", AddressScope.EXAMPLE),
        ("/ip6/2001:db8::7", AddressScope.EXAMPLE),
        ("/ip4/1.1.1.1", AddressScope.PUBLIC),
        ("/ip6/2606:4700:4700::1111", AddressScope.PUBLIC),
        ("/dns/seed.example", AddressScope.NAME),
    ],
)
def test_scope_of_each_kind_of_address(place: str, scope: AddressScope) -> None:
    assert scope_of(parse(f"{place}/tcp/4201")) is scope


def test_address_scopes_have_documented_codes_and_explanations() -> None:
    assert (
        {each.code for each in AddressScope}
        == {"ADDR-LOOPBACK", "ADDR-PRIVATE", ""}
        <= {*CODES, ""}
    )
    assert {each for each in AddressScope if not each.words} == {
        AddressScope.PUBLIC,
        AddressScope.NAME,
    }


def failed(place: str, code: str = "NET-REFUSED") -> DialFailed:
    return DialFailed(parse(f"{place}/tcp/4201/p2p/{PEER}"), code, "refused")


def test_failed_dial_of_loopback_says_it_dialled_this_machine() -> None:
    failure = failed("/ip4/127.0.0.1")
    assert failure.code == "NET-REFUSED"
    assert "this machine itself" in failure.likely
    assert "your machine is not at fault" not in failure.likely
    assert "p2ptrain explain ADDR-LOOPBACK" in failure.do


@pytest.mark.parametrize("place", ["/ip4/192.168.1.7", "/ip4/100.64.0.1"])
def test_failed_dial_of_a_private_address_says_where_it_works(place: str) -> None:
    failure = failed(place)
    assert "only inside" in failure.likely
    assert "p2ptrain explain ADDR-PRIVATE" in failure.do


def test_failed_dial_of_a_public_address_keeps_its_message() -> None:
    for place in ("/ip4/203.0.113.7", "/dns4/seed.example"):
        assert failed(place).likely == "the peer is down; your machine is not at fault"


def test_advice_is_about_the_address_that_is_not_loopback() -> None:
    near, far = failed("/ip4/127.0.0.1", "NET-WRONG-ID"), failed("/ip4/203.0.113.7")
    error = none_answered([("near", near), ("far", far)])
    assert isinstance(error, NetworkUnreachable)
    assert (error.code, error.likely) == (far.code, far.likely)
    assert len(error.evidence) == 2

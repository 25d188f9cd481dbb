"""A router is asked over real UDP sockets; hostile answers do not count."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address

import pytest

from p2ptrain.portmap.datagrams import Interruption, NoAnswer, exchange
from p2ptrain.portmap.router import Router
from p2ptrain.portmap.values import (
    Checked,
    CheckRequest,
    Closed,
    Granted,
    MapRequest,
    Protocol,
    Refusal,
    Refused,
    Reply,
    Request,
    Silent,
    UnmapRequest,
)
from tests.portmap.fake_gateway import (
    GATEWAY,
    HOST,
    OUTSIDE,
    STRANGER,
    Script,
    fake_gateway,
    natpmp_response,
    pcp_response,
)

NONCE = b"0123456789ab"
PCP, NAT_PMP = Protocol.PCP, Protocol.NAT_PMP
BY_PCP = MapRequest(PCP, 4201, 50_001, 3600, NONCE)
BY_NAT_PMP = MapRequest(NAT_PMP, 4201, 50_001, 3600, NONCE)
GRANTED = Granted(IPv4Address(OUTSIDE), 50_001, 3600, 1000)


def reply_to(request: Request, script: Script) -> Reply:
    with fake_gateway(script) as fake, Interruption() as interruption:
        return Router(GATEWAY, port=fake.port).ask(request, interruption)


def test_pcp_opens_checks_and_closes_a_port() -> None:
    def script(data: bytes) -> list[bytes]:
        return [pcp_response(data)]

    assert reply_to(BY_PCP, script) == GRANTED
    assert reply_to(CheckRequest(PCP, (50_001,)), script) == Checked(uptime_s=1000)
    assert reply_to(UnmapRequest(PCP, 4201, 50_001, NONCE), script) == Closed()


def test_natpmp_opens_checks_and_closes_a_port() -> None:
    def script(data: bytes) -> list[bytes]:
        return [natpmp_response(data)]

    outside = IPv4Address(OUTSIDE)
    assert reply_to(BY_NAT_PMP, script) == GRANTED
    assert reply_to(CheckRequest(NAT_PMP, (50_001,)), script) == Checked(outside, 1000)
    assert reply_to(UnmapRequest(NAT_PMP, 4201, 50_001, NONCE), script) == Closed()


def test_lost_datagram_is_sent_again() -> None:
    with fake_gateway(lambda data: []) as fake, Interruption() as interruption:
        fake.script = lambda data: [pcp_response(data)] if len(fake.received) == 2 else []
        assert Router(GATEWAY, port=fake.port).ask(BY_PCP, interruption) == GRANTED
        assert fake.received[0] == fake.received[1]


@pytest.mark.parametrize(
    "hostile",
    [
        lambda data: pcp_response(data, nonce=b"x" * 12),
        lambda data: pcp_response(data)[:40],
        lambda data: pcp_response(data, ports=b"\x00\x01\xc3\x51"),
        lambda data: pcp_response(data, address=bytes(15) + b"\x01"),
        lambda data: pcp_response(data, address=bytes(10) + b"\xff\xff\x7f\0\0\1"),
        lambda data: pcp_response(data, address=bytes(10) + b"\xff\xff\xe0\0\0\1"),
        lambda data: pcp_response(data, address=bytes(10) + b"\xff\xff\0\0\0\0"),
        lambda data: pcp_response(data, ports=data[40:42] + b"\0\0"),
        lambda data: data,
        lambda data: b"",
    ],
    ids="nonce truncated port IPv6 loopback multicast nowhere port-0 echo empty".split(),
)
def test_hostile_answer_is_ignored_and_the_right_one_still_counts(hostile: object) -> None:
    assert callable(hostile)
    assert reply_to(BY_PCP, lambda data: [hostile(data), pcp_response(data)]) == GRANTED


@pytest.mark.parametrize("lifetime_s", [0, 1, 2**32 - 1])
def test_strange_lifetime_is_reported_as_it_is(lifetime_s: int) -> None:
    """The lease decides about it."""
    by_pcp = reply_to(BY_PCP, lambda data: [pcp_response(data, lifetime_s=lifetime_s)])
    by_pmp = reply_to(BY_NAT_PMP, lambda data: [natpmp_response(data, lifetime_s=lifetime_s)])
    assert by_pcp == by_pmp == Granted(IPv4Address(OUTSIDE), 50_001, lifetime_s, 1000)


def test_answer_from_another_address_does_not_count() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
        fake_gateway(lambda data: []) as fake,
        Interruption() as interruption,
    ):
        stranger.bind((STRANGER, 0))

        def answer_from_elsewhere(data: bytes) -> list[bytes]:
            stranger.sendto(pcp_response(data), fake.askers[-1])
            return []

        fake.script = answer_from_elsewhere
        reply = Router(GATEWAY, port=fake.port).ask(BY_PCP, interruption)
        assert reply == Silent("it does not answer")


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (2, Refusal.DENIED),
        (7, Refusal.NO_ADDRESS),
        (8, Refusal.TEMPORARY),
        (9, Refusal.UNSUPPORTED),
    ],
)
def test_refusal_of_pcp_is_told_in_words(result: int, kind: Refusal) -> None:
    reply = reply_to(BY_PCP, lambda data: [pcp_response(data, result=result)])
    assert isinstance(reply, Refused)
    assert reply.kind is kind
    assert reply.reason.startswith(("it ", "its "))


def test_router_with_only_natpmp_refuses_pcp_at_once() -> None:
    reply = reply_to(BY_PCP, lambda data: [bytes.fromhex("00 81 0001 000003e8")])
    assert reply == Refused(Refusal.UNSUPPORTED, "it speaks a different version of PCP")


def test_router_without_an_address_refuses_natpmp() -> None:
    by_error = reply_to(BY_NAT_PMP, lambda data: [bytes.fromhex("00 80 0003 000003e8")])
    by_zero = reply_to(BY_NAT_PMP, lambda data: [natpmp_response(data, address="0.0.0.0")])
    assert by_error == by_zero
    assert isinstance(by_error, Refused)
    assert by_error.kind is Refusal.NO_ADDRESS


def test_router_that_does_not_listen_is_noticed_at_once() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
    with Interruption() as interruption:
        reply = Router(GATEWAY, port=port).ask(BY_PCP, interruption)
    assert reply == Silent("it does not listen for such requests")


def test_interruption_ends_a_request_at_once() -> None:
    with fake_gateway(lambda data: []) as fake, Interruption() as interruption:

        def script(data: bytes) -> list[bytes]:
            interruption.stop()
            return []

        fake.script = script
        answer = exchange(GATEWAY, b"?", bytes, interruption, port=fake.port, waits_s=(3600.0,))
        assert answer == NoAnswer("the request was interrupted")


def test_flood_of_garbage_ends_no_later_than_the_deadline() -> None:
    with fake_gateway(lambda data: [b"garbage"] * 200) as fake, Interruption() as interruption:
        reply = Router(GATEWAY, port=fake.port).ask(BY_PCP, interruption)
    assert reply == Silent("it does not answer")
    assert len(fake.received) == 3

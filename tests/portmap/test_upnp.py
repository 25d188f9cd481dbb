"""UPnP finds the router only, leaves other machines' ports alone, and survives a bad router.

The real miniupnpc asks a fake router over HTTP on loopback.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.portmap import ssdp
from p2ptrain.portmap.datagrams import Interruption
from p2ptrain.portmap.ssdp import find_description
from p2ptrain.portmap.upnp import UpnpClient, reply_of, run_process
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
    OUR_HOST,
    OUTSIDE,
    STRANGER,
    FakeIgd,
    fake_gateway,
    fake_igd,
)

UPNP, NONCE = Protocol.UPNP, bytes(12)
OPEN = MapRequest(UPNP, 4201, 4201, 3600, NONCE)
CHECK, CLOSE = CheckRequest(UPNP, (4201,)), UnmapRequest(UPNP, 4201, 4201, NONCE)
ROUTER = IPv4Address(HOST)
USER = "somebody"
NEIGHBOUR = ("127.0.0.77", 4201, 0)


def answer(url: str, kind: str = ssdp.TYPES[0]) -> bytes:
    return f"HTTP/1.1 200 OK\r\nST: {kind}\r\nLOCATION: {url}\r\n\r\n".encode()


def always(said: list[bytes], data: bytes) -> list[bytes]:
    return said


@contextmanager
def upnp() -> Iterator[tuple[FakeIgd, UpnpClient]]:
    """A UPnP router, and a client that asks it."""
    with fake_igd() as igd, fake_gateway(lambda data: [answer(igd.url)]) as search:
        yield igd, UpnpClient(GATEWAY, (HOST, search.port))


def ask(client: UpnpClient, request: Request) -> Reply:
    with Interruption() as interruption:
        return client.ask(request, interruption)


def test_port_is_opened_checked_and_closed() -> None:
    with upnp() as (igd, client):
        assert ask(client, OPEN) == Granted(IPv4Address(OUTSIDE), 4201, 3600)
        assert igd.mappings == {4201: (OUR_HOST, 4201, 3600)}
        assert ask(client, CHECK) == Checked(IPv4Address(OUTSIDE))
        assert ask(client, CLOSE) == Closed()
        assert igd.mappings == {}
        assert ask(client, CHECK) == Checked(IPv4Address(OUTSIDE), mapped=False)


def test_port_of_another_machine_is_left_alone() -> None:
    with upnp() as (igd, client):
        igd.mappings[4201] = NEIGHBOUR
        assert ask(client, OPEN) == Granted(IPv4Address(OUTSIDE), 5201, 3600)
        assert ask(client, CLOSE) == Closed()
        assert igd.mappings == {4201: NEIGHBOUR, 5201: (OUR_HOST, 4201, 3600)}


def test_router_with_permanent_mappings_only_gets_one_without_an_end() -> None:
    with upnp() as (igd, client):
        igd.error = 725
        assert isinstance(ask(client, OPEN), Granted)
        assert igd.mappings == {4201: (OUR_HOST, 4201, 0)}


@pytest.mark.parametrize(("error", "kind"), [(606, Refusal.DENIED), (501, Refusal.TEMPORARY)])
def test_refusal_is_told_in_words(error: int, kind: Refusal) -> None:
    with upnp() as (igd, client):
        igd.error = error
        reply = ask(client, OPEN)
        assert isinstance(reply, Refused)
        assert reply.kind is kind
        assert "answers" in reply.reason


@pytest.mark.parametrize("address", ["", "0.0.0.0"])
def test_router_without_an_address_opens_nothing(address: str) -> None:
    with upnp() as (igd, client):
        igd.external = address
        reply = ask(client, OPEN)
        assert isinstance(reply, Refused)
        assert reply.kind is Refusal.NO_ADDRESS
        assert igd.mappings == {}


@pytest.mark.parametrize("address", ["127.0.0.1", "224.0.0.1", "none", "1.2.3.4" * 40])
def test_impossible_external_address_is_not_believed(address: str) -> None:
    with upnp() as (igd, client):
        igd.external = address
        assert not isinstance(ask(client, OPEN), Granted)


def test_other_device_cannot_pose_as_the_router() -> None:
    for host, described_at in ((STRANGER, HOST), (HOST, STRANGER)):
        said = [answer(f"http://{described_at}:80/device.xml")]
        with fake_gateway(partial(always, said), host) as search, Interruption() as interruption:
            at = (host, search.port)
            assert find_description(GATEWAY, interruption, to=at, waits_s=(0.3,)) is None


def test_router_that_answers_no_search_is_silent() -> None:
    with fake_gateway(lambda data: []) as search:
        client = UpnpClient(GATEWAY, (HOST, search.port))
        assert ask(client, OPEN) == Silent("no router answers")
    assert len(search.received) == 4


def test_search_has_the_form_that_routers_expect() -> None:
    assert ssdp.question("urn:x") == (
        b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n"
        b'MAN: "ssdp:discover"\r\nMX: 1\r\nST: urn:x\r\n\r\n'
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        answer(f"https://{HOST}/d.xml"),
        answer(f"http://{STRANGER}/d.xml"),
        answer(f"http://{HOST}@{STRANGER}/d.xml"),
        answer(f"http://{USER}@{HOST}/d.xml"),
        answer(f"http://{HOST}:0/d.xml"),
        answer(f"http://{HOST}:99999/d.xml"),
        answer("http://[::1/d.xml"),
        answer(f"http://{HOST}#.example/d.xml"),
        answer(f"http://{HOST}/" + "x" * 300),
        answer(f"http://{HOST}/d.xml", "urn:schemas-upnp-org:device:MediaServer:1"),
        answer(f"http://{HOST}/d.xml").replace(b"200 OK", b"404 No"),
        answer(f"http://{HOST}/\xff"),
        b"HTTP/1.1 200 OK\r\nST: InternetGatewayDevice\r\n\r\n",
    ],
)
def test_answer_that_does_not_lead_to_the_router_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        ssdp.location(data, ROUTER)


@given(st.one_of(st.binary(max_size=400), st.text(max_size=60).map(lambda x: answer(x))))
def test_no_search_answer_raises_anything_but_our_error(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        assert ssdp.location(data, ROUTER).startswith(f"http://{HOST}")


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["granted", "checked", "closed", "refused"]), inner, max_size=2
        ),
    ),
    max_leaves=6,
)


@given(st.one_of(st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode())))
def test_no_output_of_the_process_raises_anything_but_our_error(said: bytes) -> None:
    for request in (OPEN, CHECK, CLOSE):
        try:
            reply_of(request, said)
        except RemoteProtocolError:
            continue


def test_reason_of_a_router_is_bounded_and_printable() -> None:
    said = json.dumps({"refused": ["temporary", "\x1b[31m" + "x" * 1000]}).encode()
    reply = reply_of(OPEN, said)
    assert reply == Refused(Refusal.TEMPORARY, "[31m" + "x" * 156)


@contextmanager
def deaf_router() -> Iterator[str]:
    """A router that accepts a connection and never answers. Yields its address."""
    with socket.create_server((HOST, 0)) as listening:
        yield f"http://{HOST}:{listening.getsockname()[1]}/device.xml"


def test_router_that_never_answers_is_given_up_at_the_deadline() -> None:
    question = {"url": "", "do": "check", "ports": []}
    with deaf_router() as url, Interruption() as interruption:
        assert run_process({**question, "url": url}, interruption, deadline_s=0.5) == b""


def test_interruption_kills_the_process() -> None:
    question = {"url": "", "do": "check", "ports": []}
    with deaf_router() as url, Interruption() as interruption:
        threading.Timer(0.2, interruption.stop).start()
        assert run_process({**question, "url": url}, interruption, deadline_s=60.0) == b""

"""A member reports the external address of a port, keeps the connection open, and is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    ExternalAddress,
    LocalPort,
    ObserveServer,
    PeerSocket,
    observe,
)
from p2ptrain.dataplane.observing import ASKED_AT_ONCE, HELD_PER_PEER_MAX, PURPOSE, decode_answer
from p2ptrain.encoding import pack
from p2ptrain.errors import PeerUnreachable, RemoteProtocolError

from .conftest import DEADLINE_S, ListenerFactory, eventually


@pytest.fixture
def port() -> Iterator[LocalPort]:
    with LocalPort("127.0.0.2") as made:
        yield made


def ask(credentials: Credentials, member: Endpoint, port: LocalPort) -> ExternalAddress:
    found = observe(credentials, member, port, deadline_s=DEADLINE_S)
    found.connection.close()
    return found.seen


def test_member_reports_the_address_of_the_port(
    client: Credentials, listening: ListenerFactory, port: LocalPort
) -> None:
    listener, member = listening()
    listener.handle(PURPOSE, ObserveServer(hold_s=DEADLINE_S))
    found = observe(client, member, port, deadline_s=DEADLINE_S)
    assert (found.seen.host, found.seen.port) == port.address
    assert listener.statistics().connections_now == 1
    found.connection.close()
    eventually(lambda: listener.statistics().connections_now == 0)
    assert listener.statistics().served == 1


def test_listener_of_both_versions_of_ip_reports_plain_ipv4_addresses(
    client: Credentials, listening: ListenerFactory, port: LocalPort
) -> None:
    listener, member = listening(host="")
    listener.handle(PURPOSE, ObserveServer(hold_s=DEADLINE_S))
    assert ask(client, replace(member, host="127.0.0.1"), port).host == "127.0.0.2"


def test_connection_is_not_kept_open_for_ever(
    client: Credentials, listening: ListenerFactory, port: LocalPort
) -> None:
    listener, member = listening()
    listener.handle(PURPOSE, ObserveServer(hold_s=0.5))
    found = observe(client, member, port, deadline_s=DEADLINE_S)
    eventually(lambda: listener.statistics().connections_now == 0)
    found.connection.close()


def test_peer_that_asks_too_often_gets_no_answer(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, member = listening()
    now = [0.0]
    listener.handle(PURPOSE, ObserveServer(now=lambda: now[0]))
    for _ in range(ASKED_AT_ONCE):
        with LocalPort("127.0.0.2") as port:
            ask(client, member, port)
    with LocalPort("127.0.0.2") as port, pytest.raises(PeerUnreachable, match="no time"):
        ask(client, member, port)
    now[0] = 1.0
    with LocalPort("127.0.0.2") as port:
        assert ask(client, member, port).port == port.address[1]


def test_peer_cannot_keep_too_many_connections_open(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, member = listening()
    listener.handle(PURPOSE, ObserveServer(hold_s=DEADLINE_S))
    ports = [LocalPort("127.0.0.2") for _ in range(HELD_PER_PEER_MAX + 1)]
    held = [observe(client, member, port, deadline_s=DEADLINE_S) for port in ports[1:]]
    with pytest.raises(PeerUnreachable, match="no time"):
        ask(client, member, ports[0])
    for each in held:
        each.close()
    ports[0].close()


def test_malformed_answer_is_refused(client: Credentials, listening: ListenerFactory) -> None:
    listener, member = listening()
    answers = [b"x", pack({"host": "localhost", "port": 5000}), pack({"host": "::1", "port": 80})]

    def lie(connection: PeerSocket, hello: object) -> None:
        connection.send_frame(answers.pop())
        connection.ended.wait(DEADLINE_S)

    listener.handle(PURPOSE, lie)
    while answers:
        with LocalPort("127.0.0.2") as port, pytest.raises(RemoteProtocolError):
            ask(client, member, port)


@pytest.mark.parametrize("host", ["127.0.0.1 ", "fe80::1%eth0", "::ffff:10.0.0.1", "010.0.0.1", ""])
def test_host_in_an_unusual_form_is_refused(host: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_answer(pack({"host": host, "port": 5000}))


def test_port_stays_reserved_until_it_is_closed() -> None:
    with LocalPort("127.0.0.2") as one:
        others = [LocalPort("127.0.0.2") for _ in range(64)]
        assert one.address not in {other.address for other in others}
        for other in others:
            other.close()

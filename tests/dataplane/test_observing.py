"""A member reports the external address of a port, keeps the connection open, and is bounded."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    ExternalAddress,
    LocalPort,
    Observation,
    ObserveServer,
    PeerSocket,
    observe,
)
from p2ptrain.dataplane.listener import ListenerStatistics
from p2ptrain.dataplane.observing import (
    ASKED_AT_ONCE,
    ASKED_BY_VISITORS_AT_ONCE,
    HELD_BY_VISITORS_MAX,
    HELD_MAX,
    HELD_PER_PEER_MAX,
    PURPOSE,
    decode_answer,
)
from p2ptrain.encoding import pack
from p2ptrain.errors import PeerUnreachable, RemoteProtocolError

from .conftest import DEADLINE_S, ListenerFactory, eventually, identity


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
    assert (found.seen.host, found.seen.port) == port.address
    eventually(lambda: is_over(found.connection))
    eventually(lambda: listener.statistics().connections_now == 0)
    assert listener.statistics() == ListenerStatistics(accepted=1, served=1)
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


def test_greediest_peer_loses_its_oldest_connection(listening: ListenerFactory) -> None:
    listener, member = listening()
    listener.handle(PURPOSE, ObserveServer(hold_s=DEADLINE_S))
    greedy = [Credentials.create(identity(number)) for number in (41, 42, 43)]
    modest = Credentials.create(identity(44))
    for each in (*greedy, modest):
        listener.trust_certificate(each.certificate_der)
    held: list[list[Observation]] = []
    for each in greedy:
        ports = [LocalPort("127.0.0.2") for _ in range(HELD_MAX // len(greedy))]
        held.append([observe(each, member, port, deadline_s=DEADLINE_S) for port in ports])
    with LocalPort("127.0.0.2") as port:
        found = observe(modest, member, port, deadline_s=DEADLINE_S)
        eventually(lambda: listener.statistics().connections_now == HELD_MAX)
        ended = [each[0].connection for each in held]
        eventually(lambda: any(is_over(each) for each in ended))
        assert sum(is_over(each) for each in ended) == 1
        assert not is_over(found.connection)
        found.connection.close()
    for observed in (each for of_peer in held for each in of_peer):
        observed.close()


def is_over(connection: PeerSocket) -> bool:
    """Return whether the other end has closed the connection."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_visitors_do_not_use_up_the_limit_of_members(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, member = listening()
    listener.set_members([client.peer])
    server = ObserveServer(is_member=listener.is_member, now=lambda: 0.0)
    listener.handle(PURPOSE, server)
    visitors = [Credentials.create(identity(number)) for number in (45, 46)]
    for each in visitors:
        listener.trust_certificate(each.certificate_der)
    answered = 0
    for each in visitors:
        with suppress(PeerUnreachable):
            for _ in range(ASKED_BY_VISITORS_AT_ONCE):
                with LocalPort("127.0.0.2") as port:
                    ask(each, member, port)
                answered += 1
    assert answered == ASKED_BY_VISITORS_AT_ONCE
    with LocalPort("127.0.0.2") as port:
        assert ask(client, member, port).port == port.address[1]


def test_visitors_cannot_keep_too_many_connections_open(
    client: Credentials, listening: ListenerFactory
) -> None:
    listener, member = listening()
    server = ObserveServer(is_member=lambda peer: False, hold_s=DEADLINE_S, now=lambda: next(times))
    times = count(0.0, 60.0)
    listener.handle(PURPOSE, server)
    ports = [LocalPort("127.0.0.2") for _ in range(HELD_BY_VISITORS_MAX + 1)]
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

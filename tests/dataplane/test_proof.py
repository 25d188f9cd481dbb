"""A peer proves that its data plane listens at an address, and remembers who connected to it."""

from __future__ import annotations

import socket
import time

import pytest

from p2ptrain.dataplane import PROOF, Credentials, Endpoint, prove
from p2ptrain.errors import PeerTooSlow, PeerUnreachable, RemoteProtocolError
from tests.dataplane.conftest import ListenerFactory, eventually

DEADLINE_S = 10.0


def test_listener_proves_itself_and_notes_the_site_of_the_arrival(
    listening: ListenerFactory, client: Credentials
) -> None:
    listener, endpoint = listening()
    listener.handle(PROOF, lambda connection, hello: None)
    began = time.monotonic()
    assert listener.arrivals() == {}
    prove(client, endpoint, deadline_s=DEADLINE_S)
    eventually(lambda: listener.statistics().served == 1)
    ((site, at),) = listener.arrivals().items()
    assert site == "127.0.0.1"
    assert began <= at <= time.monotonic()


def test_listener_proves_itself_to_a_peer_that_it_does_not_trust(
    listening: ListenerFactory, stranger: Credentials
) -> None:
    listener, endpoint = listening()
    prove(stranger, endpoint, deadline_s=DEADLINE_S)
    eventually(lambda: listener.statistics().refused_handshake == 1)
    assert listener.arrivals() == {}, "a peer that did not prove itself is not evidence"


def test_another_listener_at_the_address_is_no_proof(
    listening: ListenerFactory, client: Credentials, stranger: Credentials
) -> None:
    _, real = listening()
    there = Endpoint(stranger.peer, real.host, real.port, stranger.certificate_der)
    with pytest.raises(RemoteProtocolError, match="certificate"):
        prove(client, there, deadline_s=DEADLINE_S)
    mixed = Endpoint(stranger.peer, real.host, real.port, real.certificate_der)
    with pytest.raises(RemoteProtocolError, match="belongs to another peer"):
        prove(client, mixed, deadline_s=DEADLINE_S)


def test_closed_and_silent_ports_are_told_apart(client: Credentials, server: Credentials) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        endpoint = Endpoint(server.peer, host, port, server.certificate_der)
        with pytest.raises(PeerTooSlow):
            prove(client, endpoint, deadline_s=0.2)
    with pytest.raises(PeerUnreachable):
        prove(client, endpoint, deadline_s=DEADLINE_S)

"""A peer with several addresses is dialled at all of them, in overlapping steps, until it has
proved its identity at one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest

from p2ptrain.dataplane import Credentials, DialHandle, Endpoint, Listener, dial
from p2ptrain.dataplane.endpoint import OTHERS_MAX
from p2ptrain.dataplane.racing import OVERLAP_S
from p2ptrain.errors import PeerError, PeerTooSlow, PeerUnreachable, RemoteProtocolError
from tests.dataplane.conftest import ListenerFactory, eventually

LONG_S = 30.0
HELLO = {"purpose": "echo"}


@contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """Listen on an address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.7", 0)) as sock:
        yield sock.getsockname()


@contextmanager
def closed() -> Iterator[tuple[str, int]]:
    """Yield an address where nobody listens."""
    with socket.create_server(("127.0.0.8", 0)) as sock:
        place = sock.getsockname()
    yield place


@contextmanager
def somebody_else(stranger: Credentials) -> Iterator[tuple[str, int]]:
    """Open the data plane of another peer."""
    with Listener(stranger, "127.0.0.9", 0, allowed=lambda peer: True) as listener:
        yield listener.address


def at(endpoint: Endpoint, *places: tuple[str, int]) -> Endpoint:
    (host, port), *others = places
    return replace(endpoint, host=host, port=port, others=tuple(others))


def test_first_address_is_used_alone_if_it_answers_at_once(
    listening: ListenerFactory, client: Credentials
) -> None:
    listener, endpoint = listening()
    other, elsewhere = listening()
    both = at(endpoint, (endpoint.host, endpoint.port), (elsewhere.host, elsewhere.port))
    dial(client, both, HELLO, deadline_s=LONG_S).close()
    assert (listener.statistics().accepted, other.statistics().accepted) == (1, 0)


def test_silent_address_delays_the_dial_by_one_step(
    listening: ListenerFactory, client: Credentials
) -> None:
    _, endpoint = listening()
    with silent() as first:
        began = time.monotonic()
        places = (first, (endpoint.host, endpoint.port))
        dial(client, at(endpoint, *places), HELLO, deadline_s=LONG_S).close()
        assert OVERLAP_S <= time.monotonic() - began < LONG_S / 2


def test_refused_address_does_not_delay_the_dial(
    listening: ListenerFactory, client: Credentials
) -> None:
    _, endpoint = listening()
    with closed() as first, closed() as second, closed() as third:
        places = (first, second, third, (endpoint.host, endpoint.port))
        began = time.monotonic()
        dial(client, at(endpoint, *places), HELLO, deadline_s=LONG_S).close()
        assert time.monotonic() - began < 3 * OVERLAP_S


def test_another_machine_at_an_address_is_passed_over(
    listening: ListenerFactory, client: Credentials, stranger: Credentials
) -> None:
    _, endpoint = listening()
    with somebody_else(stranger) as first:
        places = (first, (endpoint.host, endpoint.port))
        connection = dial(client, at(endpoint, *places), HELLO, deadline_s=LONG_S)
        assert connection.peer == endpoint.peer
        connection.close()


def test_early_address_still_wins_after_the_next_one_was_tried(
    listening: ListenerFactory, client: Credentials
) -> None:
    """A forwarder at the first address starts to work only when the second address is tried."""
    listener, endpoint = listening()
    with (
        socket.create_server(("127.0.0.6", 0)) as first,
        socket.create_server(("127.0.0.7", 0)) as second,
        ExitStack() as stack,
    ):

        def forward() -> None:
            stack.enter_context(second.accept()[0])
            here = stack.enter_context(first.accept()[0])
            there = stack.enter_context(socket.create_connection(listener.address))
            back = threading.Thread(target=_copy, args=(there, here))
            back.start()
            _copy(here, there)
            back.join()

        forwarder = threading.Thread(target=forward)
        forwarder.start()
        places = (first.getsockname(), second.getsockname())
        connection = dial(client, at(endpoint, *places), HELLO, deadline_s=LONG_S)
        assert connection.peer == endpoint.peer
        assert connection.remote_address() == first.getsockname()
        connection.close()
        forwarder.join()
    eventually(lambda: listener.statistics().connections_now == 0)
    found = listener.statistics()
    assert (found.accepted, found.served + found.handler_errors) == (1, 1)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one side ends, and then end the other side."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def test_losing_tries_leave_neither_threads_nor_connections(
    listening: ListenerFactory, client: Credentials
) -> None:
    listener, endpoint = listening()
    before = threading.active_count()
    with silent() as first:
        places = (first, (endpoint.host, endpoint.port))
        connection = dial(client, at(endpoint, *places), HELLO, deadline_s=LONG_S)
        eventually(lambda: listener.statistics().connections_now == 1)
        dialling = [each for each in threading.enumerate() if each.name == "dataplane-dial"]
        assert dialling == []
        connection.close()
    eventually(lambda: threading.active_count() <= before)


def test_errors_of_all_addresses_are_reported_together(
    client: Credentials, server: Credentials, stranger: Credentials
) -> None:
    own = server.certificate_der
    with closed() as first, closed() as second, somebody_else(stranger) as other:
        with pytest.raises(PeerUnreachable) as raised:
            dial(client, Endpoint(server.peer, *first, own, (second,)), HELLO, deadline_s=LONG_S)
        assert raised.value.what.count("refused") == 2
        with pytest.raises(PeerUnreachable, match="did not present"):
            dial(client, Endpoint(server.peer, *first, own, (other,)), HELLO, deadline_s=LONG_S)
        with pytest.raises(RemoteProtocolError):
            dial(client, Endpoint(server.peer, *other, own, (other,)), HELLO, deadline_s=LONG_S)


def test_deadline_covers_all_addresses(client: Credentials, server: Credentials) -> None:
    with silent() as first, silent() as second:
        endpoint = Endpoint(server.peer, *first, server.certificate_der, (second,))
        began = time.monotonic()
        with pytest.raises(PeerTooSlow):
            dial(client, endpoint, HELLO, deadline_s=0.5)
        assert time.monotonic() - began < LONG_S / 2


def test_all_tries_end_when_the_caller_gives_up(client: Credentials, server: Credentials) -> None:
    with silent() as first, silent() as second:
        endpoint = Endpoint(server.peer, *first, server.certificate_der, (second,))
        dialling = DialHandle()
        threading.Timer(1.5 * OVERLAP_S, dialling.give_up).start()
        began = time.monotonic()
        with pytest.raises(PeerError):
            dial(client, endpoint, HELLO, deadline_s=LONG_S, dialling=dialling)
        assert time.monotonic() - began < LONG_S / 2


def test_number_of_addresses_is_bounded_and_each_is_checked(server: Credentials) -> None:
    own = server.certificate_der
    place = ("192.0.2.1", 1)
    assert len(list(Endpoint(server.peer, *place, own, (place,) * OTHERS_MAX).each_place())) == 4
    for others in ((place,) * (OTHERS_MAX + 1), (("a.name", 1),), (("192.0.2.1", 0),)):
        with pytest.raises(RemoteProtocolError):
            Endpoint(server.peer, *place, own, others)

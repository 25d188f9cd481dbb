"""Two ends that call each other from fixed ports get one connection, and only with each other.

The ends are at 127.0.0.2 and 127.0.0.3, so each of them has an address of its own. On loopback no
call is lost, and the scheduler decides which of the two calls arrives first.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

import pytest

from p2ptrain.dataplane import (
    Credentials,
    DialHandle,
    Endpoint,
    Listener,
    LocalPort,
    PeerSocket,
    PunchTimes,
    RingInbox,
    RingKey,
    punch_and_dial,
    punch_and_serve,
)
from p2ptrain.dataplane.punching import ROUNDS_MAX
from p2ptrain.errors import (
    PeerError,
    PeerLost,
    PeerTooSlow,
    PeerUnreachable,
    RemoteProtocolError,
)
from p2ptrain.ids import RunId

from .conftest import DEADLINE_S, HANDSHAKE, Echo, ListenerFactory, eventually

Background = Callable[[Callable[[], object]], Callable[[], object]]

PATIENT = PunchTimes(DEADLINE_S, DEADLINE_S, DEADLINE_S)
"""Limits that honest ends never reach, even on a busy machine."""
HASTY = PunchTimes(0.3, 0.3, 0.3)
"""Limits that a test expects to be reached."""
SOON_S = DEADLINE_S / 2
ECHO = {"purpose": "echo"}


@dataclass
class Ends:
    """The two ports, and each end's endpoint as the other end knows it."""

    client: LocalPort
    server: LocalPort
    to_client: Endpoint
    to_server: Endpoint
    listener: Listener
    credentials: Credentials

    def dial(self, hello: Mapping[str, object] = ECHO, **options: object) -> PeerSocket:
        options = {"times": PATIENT, **options}
        return punch_and_dial(
            self.credentials,
            self.to_server,
            hello,
            self.client,
            **options,  # type: ignore[arg-type]
        )

    def serve(self, times: PunchTimes = PATIENT, dialling: DialHandle | None = None) -> None:
        punch_and_serve(self.listener, self.to_client, self.server, times=times, dialling=dialling)


MakeEnds = Callable[..., Ends]


@pytest.fixture
def make_ends(
    listening: ListenerFactory, client: Credentials, server: Credentials
) -> Iterator[MakeEnds]:
    with ExitStack() as stack:

        def make(**options: bool) -> Ends:
            listener, _ = listening(**options)
            here = stack.enter_context(LocalPort("127.0.0.2"))
            there = stack.enter_context(LocalPort("127.0.0.3"))
            return Ends(
                here,
                there,
                Endpoint(client.peer, *here.address, client.certificate_der),
                Endpoint(server.peer, *there.address, server.certificate_der),
                listener,
                client,
            )

        yield make


def says(connection: PeerSocket, words: bytes) -> bytes:
    """Send `words`, and return what comes back."""
    connection.set_deadline(DEADLINE_S)
    connection.send_frame(words)
    return connection.receive_frame()


def called_by(host: str, there: Endpoint) -> socket.socket:
    """Call the port of an end as soon as it is open, from another port of `host`."""
    sock = socket.socket()
    sock.settimeout(DEADLINE_S)
    sock.bind((host, 0))
    eventually(lambda: sock.connect_ex((there.host, there.port)) == 0)
    return sock


@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("attempt", range(4))
def test_ends_that_call_each_other_share_one_connection(
    make_ends: MakeEnds, echo: Echo, background: Background, encrypted: bool, attempt: int
) -> None:
    ends = make_ends(encrypted=encrypted)
    served = background(ends.serve)
    connection = ends.dial(encrypted=encrypted)
    assert served() is None
    assert says(connection, b"hello") == b"hello"
    assert connection.peer == ends.to_server.peer
    assert echo.served == [(ends.credentials.peer, ECHO)]
    assert connection.remote_address() == ends.server.address
    assert ends.listener.statistics().connections_now == 1
    connection.close()
    eventually(lambda: ends.listener.statistics().connections_now == 0)


def test_end_that_comes_much_later_still_connects(
    make_ends: MakeEnds, background: Background
) -> None:
    ends = make_ends()
    dialled = background(ends.dial)
    with called_by("127.0.0.3", ends.to_client):  # Now the client's end listens.
        ends.serve()
    connection = dialled()
    assert isinstance(connection, PeerSocket)
    assert says(connection, b"late") == b"late"
    connection.close()


def test_ring_inbox_gets_a_punched_connection(make_ends: MakeEnds, background: Background) -> None:
    ends, inbox = make_ends(), RingInbox()
    ends.listener.handle("ring", inbox.handle)
    key = RingKey(RunId("ab" * 32), 3, 0, 1, ends.credentials.peer)
    dialled = background(partial(ends.dial, key.to_hello()))
    ends.serve()
    inward = inbox.wait_for_socket(key, deadline_s=DEADLINE_S)
    outward = dialled()
    assert isinstance(outward, PeerSocket)
    outward.send_frame(b"a segment")
    inward.set_deadline(DEADLINE_S)
    assert inward.receive_frame() == b"a segment"
    outward.close()
    inward.close()


def test_silent_and_babbling_neighbours_do_not_block_the_peer(
    make_ends: MakeEnds, background: Background
) -> None:
    """Neighbours behind the same NAT have the peer's address, so their calls are not refused."""
    ends = make_ends()
    served = background(ends.serve)
    with called_by("127.0.0.2", ends.to_server), called_by("127.0.0.2", ends.to_server) as babbling:
        babbling.sendall(b"GET / HTTP/1.1\r\n\r\n")
        connection = ends.dial()
    assert served() is None
    assert says(connection, b"hello") == b"hello"
    connection.close()


def test_port_is_closed_after_a_few_bad_handshakes(
    make_ends: MakeEnds, background: Background
) -> None:
    ends = make_ends()
    served = background(ends.serve)
    for _ in range(ROUNDS_MAX):
        with called_by("127.0.0.2", ends.to_server) as babbling:
            babbling.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionError):
                while babbling.recv(100):
                    pass
    assert isinstance(served(), PeerLost)


def test_connection_on_which_nothing_arrives_is_replaced(
    make_ends: MakeEnds, background: Background
) -> None:
    """A NAT can close one direction of a connection that one end believes in."""
    ends = make_ends()
    with ends.server.new_socket() as deaf:
        deaf.listen(1)
        deaf.settimeout(DEADLINE_S)
        dialled = background(partial(ends.dial, times=PunchTimes(DEADLINE_S, DEADLINE_S, 0.3)))
        dead, _ = deaf.accept()
    with dead:
        ends.serve()
        connection = dialled()
    assert isinstance(connection, PeerSocket)
    assert says(connection, b"hello") == b"hello"
    connection.close()


def test_calls_from_other_hosts_are_hung_up(make_ends: MakeEnds, background: Background) -> None:
    ends = make_ends()
    served = background(ends.serve)
    with called_by("127.0.0.9", ends.to_server) as stranger:
        stranger.sendall(HANDSHAKE)
        with suppress(ConnectionError):
            assert stranger.recv(1) == b""
    ends.dial().close()
    assert served() is None


def test_another_peer_at_the_address_is_not_accepted(
    make_ends: MakeEnds, stranger: Credentials, background: Background, echo: Echo
) -> None:
    """Each end refuses: the dialler because of the certificate, the listener because of the id."""
    ends = make_ends()
    ends.listener.trust_certificate(stranger.certificate_der)
    ends.credentials = stranger
    served = background(partial(ends.serve, PunchTimes(2.0, DEADLINE_S, DEADLINE_S)))
    with pytest.raises((PeerUnreachable, PeerTooSlow)):
        ends.dial(times=PunchTimes(2.0, DEADLINE_S, DEADLINE_S))
    assert isinstance(served(), RemoteProtocolError | PeerError)
    assert echo.served == []


def test_dialler_refuses_a_listener_with_another_certificate(
    make_ends: MakeEnds, stranger: Credentials, background: Background
) -> None:
    ends = make_ends()
    ends.to_server = Endpoint(stranger.peer, *ends.server.address, stranger.certificate_der)
    served = background(partial(ends.serve, PunchTimes(2.0, DEADLINE_S, DEADLINE_S)))
    with pytest.raises(RemoteProtocolError, match="certificate"):
        ends.dial(times=PunchTimes(2.0, DEADLINE_S, DEADLINE_S))
    assert isinstance(served(), PeerError)


def test_purpose_without_a_handler_is_refused_with_a_reason(
    make_ends: MakeEnds, background: Background
) -> None:
    ends = make_ends()
    served = background(partial(ends.serve, PunchTimes(2.0, DEADLINE_S, DEADLINE_S)))
    with pytest.raises(PeerUnreachable, match="does not serve this purpose"):
        ends.dial({"purpose": "nonsense"}, times=PunchTimes(2.0, DEADLINE_S, DEADLINE_S))
    assert isinstance(served(), PeerError)


def test_absent_peer_costs_only_the_time_limit(make_ends: MakeEnds) -> None:
    ends = make_ends()
    begun_s = time.monotonic()
    with pytest.raises(PeerTooSlow, match="no hole was punched"):
        ends.dial(times=HASTY)
    with pytest.raises(PeerTooSlow, match="no hole was punched"):
        ends.serve(HASTY)
    assert time.monotonic() - begun_s < SOON_S


def test_silent_peer_costs_only_the_time_limits(make_ends: MakeEnds) -> None:
    ends = make_ends()
    begun_s = time.monotonic()
    with ends.server.new_socket() as silent, ends.client.new_socket() as also_silent:
        silent.listen(8)
        with pytest.raises(PeerTooSlow, match="no hole was punched"):
            ends.dial(times=HASTY)
        also_silent.listen(8)
        with pytest.raises(PeerTooSlow, match="no hole was punched"):
            ends.serve(HASTY)
    assert time.monotonic() - begun_s < SOON_S


@pytest.mark.parametrize("end", ["dial", "serve"])
def test_punching_is_ended_from_another_thread(
    make_ends: MakeEnds, background: Background, end: str
) -> None:
    ends, dialling = make_ends(), DialHandle()
    call = partial(ends.dial if end == "dial" else ends.serve, dialling=dialling)
    there = ends.to_client if end == "dial" else ends.to_server
    begun_s = time.monotonic()
    outcome = background(call)
    with called_by("127.0.0.9", there):  # Now this end is punching.
        dialling.give_up()
        fault = outcome()
    assert isinstance(fault, PeerUnreachable)
    assert "gave up" in fault.what
    assert time.monotonic() - begun_s < SOON_S


@pytest.mark.parametrize("end", ["dial", "serve"])
def test_handshake_of_a_punched_connection_is_ended_from_another_thread(
    make_ends: MakeEnds, background: Background, end: str
) -> None:
    ends, dialling = make_ends(), DialHandle()
    call = partial(ends.dial if end == "dial" else ends.serve, dialling=dialling)
    ours, there = (ends.server, ends.to_client) if end == "dial" else (ends.client, ends.to_server)
    outcome = background(call)
    with ours.new_socket() as frozen:
        frozen.settimeout(DEADLINE_S)
        eventually(lambda: frozen.connect_ex((there.host, there.port)) in (0, 106))
        if end == "dial":
            assert frozen.recv(1)  # The dialler waits for the other half of the handshake.
        else:
            frozen.sendall(HANDSHAKE)
        dialling.give_up()
        fault = outcome()
    assert isinstance(fault, PeerUnreachable)
    assert "gave up" in fault.what

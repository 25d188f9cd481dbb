"""One conformance suite for SecureSocket, run on the TLS one and on the plain pair."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from p2ptrain.dataplane import (
    Credentials,
    PeerSocket,
    ShutDownHere,
    plain_pair,
)
from p2ptrain.errors import LocalProtocolError, PeerLost, PeerTooSlow, RemoteProtocolError

from .conftest import connect

Pair = tuple[PeerSocket, PeerSocket]
Background = Callable[[Callable[[], object]], Callable[[], object]]


@pytest.fixture(params=["plain", "tls"])
def pair(
    request: pytest.FixtureRequest,
    server: Credentials,
    client: Credentials,
) -> Iterator[Pair]:
    """(the client's end, the server's end)"""
    if request.param == "plain":
        left, right = plain_pair(client.peer, server.peer)
        yield left, right
        left.close()
        right.close()
        return
    listening = request.getfixturevalue("listening")
    listener, endpoint = listening()
    arrived: list[PeerSocket] = []
    there = threading.Event()

    def keep(connection: PeerSocket, hello: object) -> None:
        arrived.append(connection)
        there.set()
        connection.ended.wait()

    listener.handle("keep", keep)
    left = connect(client, endpoint, {"purpose": "keep"})
    assert there.wait(5)
    yield left, arrived[0]
    left.close()
    arrived[0].close()


def test_each_end_knows_the_other(pair: Pair, client: Credentials, server: Credentials) -> None:
    left, right = pair
    assert (left.peer, right.peer) == (server.peer, client.peer)


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 3_000_001])
def test_bytes_arrive_whole_and_in_order(pair: Pair, background: Background, size: int) -> None:
    left, right = pair
    sent = os.urandom(size)
    received = bytearray(size)
    done = background(lambda: left.send_all(sent))
    right.receive_into(received)
    assert done() is None
    assert received == sent


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 1 << 20])
def test_frames_arrive_whole(pair: Pair, background: Background, size: int) -> None:
    left, right = pair
    frame = os.urandom(size)
    done = background(lambda: left.send_frame(frame))
    assert right.receive_frame() == frame
    assert done() is None


def test_numbers_travel_from_their_own_memory(pair: Pair) -> None:
    left, right = pair
    sent = memoryview(bytearray(range(8))).cast("I")
    received = memoryview(bytearray(8)).cast("I")
    left.send_all(sent)
    right.receive_into(received)
    assert received == sent


def test_a_frame_longer_than_allowed_ends_the_connection(pair: Pair) -> None:
    left, right = pair
    left.send_frame(b"x" * 101)
    with pytest.raises(RemoteProtocolError, match="101 bytes") as caught:
        right.receive_frame(100)
    assert caught.value.peer == right.peer
    with pytest.raises(PeerLost, match="too long"):
        right.receive_frame(100)


def test_the_peers_end_is_the_peers_loss(pair: Pair) -> None:
    left, right = pair
    left.close()
    with pytest.raises(PeerLost) as caught:
        right.receive_into(bytearray(1))
    assert caught.value.peer == right.peer
    assert not isinstance(caught.value, ShutDownHere)


def test_half_a_message_is_a_lost_peer(pair: Pair) -> None:
    left, right = pair
    left.send_all(b"half")
    left.close()
    with pytest.raises(PeerLost):
        right.receive_into(bytearray(8))


def test_a_silent_peer_is_too_slow(pair: Pair) -> None:
    _, right = pair
    right.set_deadline(0.05)
    started = time.monotonic()
    with pytest.raises(PeerTooSlow) as caught:
        right.receive_into(bytearray(1))
    assert caught.value.peer == right.peer
    assert time.monotonic() - started < 1
    with pytest.raises(PeerLost):
        right.receive_into(bytearray(1))


def test_a_peer_that_drips_does_not_stretch_the_deadline(
    pair: Pair, background: Background
) -> None:
    left, right = pair
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.02):
            left.send_all(b".")

    done = background(drip)
    right.set_deadline(0.2)
    started = time.monotonic()
    with pytest.raises(PeerTooSlow):
        right.receive_into(bytearray(1000))
    assert time.monotonic() - started < 1
    stop.set()
    done()


def test_a_peer_that_does_not_read_is_too_slow(pair: Pair) -> None:
    left, _ = pair
    left.set_deadline(0.1)
    with pytest.raises(PeerTooSlow):
        left.send_all(bytes(64 << 20))


def test_a_deadline_that_has_passed_is_not_waited_for(pair: Pair) -> None:
    left, right = pair
    left.send_all(b"x")
    right.set_deadline(-1)
    with pytest.raises(PeerTooSlow):
        right.receive_into(bytearray(1))


def test_shutdown_wakes_a_blocked_reader(pair: Pair, background: Background) -> None:
    _, right = pair
    blocked = threading.Event()

    def read() -> None:
        blocked.set()
        right.receive_into(bytearray(1))

    outcome = background(read)
    blocked.wait()
    right.shutdown()
    assert isinstance(outcome(), ShutDownHere)


def test_shutdown_wakes_a_blocked_writer(pair: Pair, background: Background) -> None:
    left, _ = pair
    outcome = background(lambda: left.send_all(bytes(64 << 20)))
    left.shutdown()
    assert isinstance(outcome(), ShutDownHere)


def test_close_waits_for_the_reader_that_it_wakes(pair: Pair, background: Background) -> None:
    _, right = pair
    outcome = background(lambda: right.receive_into(bytearray(1)))
    right.close()
    right.close()
    assert isinstance(outcome(), ShutDownHere)
    assert right.ended.is_set()


def test_using_a_socket_that_was_shut_down_here_blames_nobody(pair: Pair) -> None:
    left, _ = pair
    left.shutdown()
    with pytest.raises(ShutDownHere):
        left.send_all(b"x")


def test_two_threads_at_once_are_our_own_bug(pair: Pair, background: Background) -> None:
    left, right = pair
    inside = threading.Event()

    def read() -> None:
        inside.set()
        right.receive_into(bytearray(2))

    left.send_all(b"1")
    outcome = background(read)
    inside.wait()
    caught: list[LocalProtocolError] = []
    # The reader may not have entered yet; then our empty send passes, and we look again.
    for _ in range(10_000):
        try:
            right.send_all(b"")
        except LocalProtocolError as exc:
            caught.append(exc)
            break
    left.send_all(b"2")
    assert outcome() is None
    assert len(caught) == 1


def test_tampered_ciphertext_never_becomes_data(
    server: Credentials, client: Credentials, listening: Callable[..., object]
) -> None:
    _, endpoint = listening()  # type: ignore[misc]
    connection = connect(client, endpoint, {"purpose": "echo"})
    raw = socket.socket(fileno=os.dup(connection._sock.fileno()))
    raw.sendall(b"\x17\x03\x03\x00\x20" + os.urandom(32))
    with pytest.raises(PeerLost):
        connection.receive_frame()
    raw.close()
    connection.close()

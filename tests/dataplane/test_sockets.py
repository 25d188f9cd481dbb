"""One conformance suite for three kinds of connections: TLS, TLS that ends after the handshake, and
plain socket pairs."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    Listener,
    PeerSocket,
    ShutDownHere,
    plain_pair,
)
from p2ptrain.errors import LocalProtocolError, PeerLost, PeerTooSlow, RemoteProtocolError

from .conftest import DEADLINE_S, connect, eventually

Pair = tuple[PeerSocket, PeerSocket]
Background = Callable[[Callable[[], object]], Callable[[], object]]


@pytest.fixture(params=["plain", "tls", "unencrypted"])
def pair(
    request: pytest.FixtureRequest,
    server: Credentials,
    client: Credentials,
) -> Iterator[Pair]:
    """Yield the client's end and the server's end of a connection."""
    if request.param == "plain":
        left, right = plain_pair(client.peer, server.peer, deadline_s=DEADLINE_S)
        yield left, right
        left.close()
        right.close()
        return
    listening = request.getfixturevalue("listening")
    encrypted = request.param == "tls"
    listener, endpoint = listening(encrypted=encrypted)
    arrived: list[PeerSocket] = []
    there = threading.Event()

    def keep(connection: PeerSocket, hello: object) -> None:
        arrived.append(connection)
        there.set()
        connection.ended.wait()

    listener.handle("keep", keep)
    left = connect(client, endpoint, {"purpose": "keep"}, encrypted=encrypted)
    assert there.wait(DEADLINE_S)
    yield left, arrived[0]
    left.close()
    arrived[0].close()


def test_each_end_knows_the_peer_id_of_the_other(
    pair: Pair, client: Credentials, server: Credentials
) -> None:
    left, right = pair
    assert (left.peer, right.peer) == (server.peer, client.peer)


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 3_000_001])
def test_bytes_arrive_complete_and_in_order(pair: Pair, background: Background, size: int) -> None:
    left, right = pair
    sent = os.urandom(size)
    received = bytearray(size)
    done = background(lambda: left.send_all(sent))
    right.receive_into(received)
    assert done() is None
    assert received == sent


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 1 << 20])
def test_frames_arrive_complete(pair: Pair, background: Background, size: int) -> None:
    left, right = pair
    frame = os.urandom(size)
    done = background(lambda: left.send_frame(frame))
    assert right.receive_frame() == frame
    assert done() is None


def test_buffers_of_integers_are_sent_and_received_as_bytes(pair: Pair) -> None:
    left, right = pair
    sent = memoryview(bytearray(range(8))).cast("I")
    received = memoryview(bytearray(8)).cast("I")
    left.send_all(sent)
    right.receive_into(received)
    assert received == sent


def test_frame_longer_than_allowed_ends_the_connection(pair: Pair) -> None:
    left, right = pair
    left.send_frame(b"x" * 101)
    with pytest.raises(RemoteProtocolError, match="101 bytes") as caught:
        right.receive_frame(100)
    assert caught.value.peer == right.peer
    with pytest.raises(PeerLost, match="too long"):
        right.receive_frame(100)


def test_connection_closed_by_the_peer_raises_peer_lost(pair: Pair) -> None:
    left, right = pair
    left.close()
    with pytest.raises(PeerLost) as caught:
        right.receive_into(bytearray(1))
    assert caught.value.peer == right.peer
    assert not isinstance(caught.value, ShutDownHere)


def test_truncated_message_raises_peer_lost(pair: Pair) -> None:
    left, right = pair
    left.send_all(b"half")
    left.close()
    with pytest.raises(PeerLost):
        right.receive_into(bytearray(8))


def test_silent_peer_raises_peer_too_slow(pair: Pair) -> None:
    _, right = pair
    right.set_deadline(0.05)
    with pytest.raises(PeerTooSlow) as caught:
        right.receive_into(bytearray(1))
    assert caught.value.peer == right.peer
    with pytest.raises(PeerLost):
        right.receive_into(bytearray(1))


def test_bytes_that_arrive_slowly_do_not_extend_the_deadline(
    pair: Pair, background: Background
) -> None:
    left, right = pair
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.02):
            left.send_all(b".")

    done = background(drip)
    right.set_deadline(0.2)
    with pytest.raises(PeerTooSlow):
        right.receive_into(bytearray(1000))
    stop.set()
    done()


def test_peer_that_does_not_read_raises_peer_too_slow(pair: Pair) -> None:
    left, _ = pair
    left.set_deadline(0.1)
    with pytest.raises(PeerTooSlow):
        left.send_all(bytes(64 << 20))


def test_deadline_in_the_past_raises_at_once(pair: Pair) -> None:
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


def test_use_after_a_local_shutdown_does_not_blame_the_peer(pair: Pair) -> None:
    left, _ = pair
    left.shutdown()
    with pytest.raises(ShutDownHere):
        left.send_all(b"x")


def nothing_waits(sock: PeerSocket) -> bool:
    """Return whether all bytes that arrived here have been read."""
    with socket.socket(fileno=os.dup(sock.fileno())) as raw:
        try:
            return not raw.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True


def test_concurrent_use_by_two_threads_raises_local_protocol_error(
    pair: Pair, background: Background
) -> None:
    left, right = pair
    left.send_all(b"1")
    outcome = background(lambda: right.receive_into(bytearray(2)))
    eventually(lambda: nothing_waits(right))
    with pytest.raises(LocalProtocolError, match="two threads"):
        right.send_all(b"")
    left.send_all(b"2")
    assert outcome() is None


def test_tampered_ciphertext_raises_peer_lost(
    server: Credentials, client: Credentials, listening: Callable[..., tuple[Listener, Endpoint]]
) -> None:
    _, endpoint = listening()
    connection = connect(client, endpoint, {"purpose": "echo"})
    raw = socket.socket(fileno=os.dup(connection.fileno()))
    raw.sendall(b"\x17\x03\x03\x00\x20" + os.urandom(32))
    with pytest.raises(PeerLost):
        connection.receive_frame()
    raw.close()
    connection.close()


def exchanged(left: PeerSocket, right: PeerSocket, data: bytes) -> bytes:
    """Send `data` with non-blocking calls only, and return what arrives."""
    arrived = bytearray(len(data))
    sent = received = 0
    while received < len(data):
        sent += left.send_some(memoryview(data)[sent : sent + 100_000])
        received += right.receive_some(memoryview(arrived)[received:])
    return bytes(arrived)


def test_nonblocking_calls_transfer_all_bytes_in_both_directions(pair: Pair) -> None:
    left, right = pair
    data = os.urandom(3_000_000)
    assert right.receive_some(memoryview(bytearray(10))) == 0
    assert exchanged(left, right, data) == data
    assert exchanged(right, left, data) == data
    assert left.fileno() != right.fileno()


def test_full_connection_accepts_more_bytes_when_there_is_room(pair: Pair) -> None:
    left, right = pair
    data, sent = memoryview(bytes(1 << 17)), 0
    while (count := left.send_some(data)) > 0:
        sent += count
    arrived = memoryview(bytearray(sent + len(data)))
    received = 0
    while received < len(arrived):
        sent += left.send_some(data) if sent < len(arrived) else 0
        received += right.receive_some(arrived[received:])
    assert received == len(arrived)


def test_blocking_and_nonblocking_calls_can_alternate(pair: Pair) -> None:
    left, right = pair
    assert exchanged(left, right, b"one") == b"one"
    left.set_deadline(DEADLINE_S)
    right.set_deadline(DEADLINE_S)
    left.send_frame(b"two")
    assert right.receive_frame() == b"two"
    assert exchanged(left, right, b"three") == b"three"


def test_end_of_the_peers_sending_raises_peer_lost(pair: Pair) -> None:
    left, right = pair
    left.finish_sending()
    with pytest.raises(PeerLost):
        while True:
            right.receive_some(memoryview(bytearray(1)))


def test_bytes_before_the_end_are_received_first(pair: Pair) -> None:
    left, right = pair
    left.send_all(b"last words")
    left.finish_sending()
    arrived, received = memoryview(bytearray(20)), 0
    with pytest.raises(PeerLost) as told:
        while True:
            received += right.receive_some(arrived[received:])
    assert bytes(arrived[:received]) == b"last words"
    assert "closed" in told.value.what


def test_nonblocking_calls_fail_after_a_local_shutdown(pair: Pair) -> None:
    left, _ = pair
    left.shutdown()
    with pytest.raises(ShutDownHere):
        left.receive_some(memoryview(bytearray(1)))
    with pytest.raises(ShutDownHere):
        left.send_some(memoryview(b"x"))

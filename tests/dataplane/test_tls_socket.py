"""Cases of TlsSocket that the conformance suite in test_sockets.py cannot produce."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from p2ptrain.dataplane import Credentials
from p2ptrain.dataplane.tls import tls_context
from p2ptrain.dataplane.tls_socket import RECORDS_BYTES, SEND_BYTES_MAX, TlsSocket

from .conftest import DEADLINE_S, DRIP_S, HANDSHAKE, SHORT_S, dripping, in_time

Pair = tuple[TlsSocket, TlsSocket]


class RawSocket(socket.socket):
    """A socket that delivers the bytes in `forged`, one by one, before the bytes from the
    network."""

    forged = b""

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        if not self.forged:
            return super().recv_into(buffer, nbytes, flags)
        buffer[0], self.forged = self.forged[0], self.forged[1:]
        return 1


@pytest.fixture
def raws() -> tuple[RawSocket, RawSocket]:
    """Return the raw sockets of `pair`."""
    one, other = (RawSocket(fileno=sock.detach()) for sock in socket.socketpair())
    for sock in (one, other):
        sock.settimeout(DEADLINE_S)
    return one, other


@pytest.fixture
def pair(
    server: Credentials, client: Credentials, raws: tuple[RawSocket, RawSocket]
) -> Iterator[Pair]:
    """Yield the client's end and the server's end, after the handshake."""
    at_client, at_server = raws
    left = TlsSocket(
        at_client, tls_context(client, [server.certificate_der], server=False), server=False
    )
    right = TlsSocket(
        at_server, tls_context(server, [client.certificate_der], server=True), server=True
    )
    other = threading.Thread(target=right.do_handshake)
    other.start()
    left.do_handshake()
    other.join()
    yield left, right
    left.close()
    right.close()


def test_each_end_has_the_certificate_of_the_other(
    pair: Pair, server: Credentials, client: Credentials
) -> None:
    left, right = pair
    assert left.certificate_der() == server.certificate_der
    assert right.certificate_der() == client.certificate_der
    assert (left.version(), right.version()) == ("TLSv1.3", "TLSv1.3")


def test_send_does_not_return_before_all_records_are_sent(pair: Pair) -> None:
    left, right = pair
    left.settimeout(0)
    right.settimeout(0)
    data, sent = memoryview(os.urandom(SEND_BYTES_MAX)), 0
    with pytest.raises(BlockingIOError):
        while True:
            sent += left.send(data)
    arrived = bytearray()
    scratch = memoryview(bytearray(100_000))
    while len(arrived) < sent:
        arrived += scratch[: right.recv_into(scratch)]
    assert left.send(data) == len(data)  # This continues the blocked send, with the same data.
    while len(arrived) < sent + len(data):
        arrived += scratch[: right.recv_into(scratch)]
    assert bytes(arrived) == bytes(data) * (sent // len(data) + 1)


def test_encrypted_bytes_in_memory_are_bounded(pair: Pair) -> None:
    left, right = pair
    received: list[int] = []
    scratch = memoryview(bytearray(SEND_BYTES_MAX))

    def drain() -> None:
        while sum(received) < SEND_BYTES_MAX:
            received.append(right.recv_into(scratch))

    reader = threading.Thread(target=drain)
    reader.start()
    assert left.send(memoryview(bytes(4 * SEND_BYTES_MAX))) == SEND_BYTES_MAX
    reader.join()


def test_ended_stream_delivers_the_earlier_bytes_first(pair: Pair) -> None:
    left, right = pair
    left.send(memoryview(b"last words"))
    left.shutdown(socket.SHUT_WR)
    scratch = memoryview(bytearray(100))
    assert bytes(scratch[: right.recv_into(scratch)]) == b"last words"
    assert right.recv_into(scratch) == 0


def test_handshake_fails_when_the_peer_leaves(client: Credentials) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    tls = TlsSocket(ours, tls_context(client, [client.certificate_der], server=False), server=False)
    with pytest.raises(OSError):
        tls.do_handshake()
    tls.close()


@pytest.mark.parametrize("is_server", [False, True])
def test_handshake_that_arrives_byte_by_byte_times_out(
    client: Credentials, is_server: bool
) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(SHORT_S)
    context = tls_context(client, [client.certificate_der], server=is_server)
    tls = TlsSocket(ours, context, server=is_server)
    with dripping(theirs, HANDSHAKE), in_time(), pytest.raises(TimeoutError):
        tls.do_handshake()
    tls.close()
    theirs.close()


def test_receive_of_a_record_that_arrives_byte_by_byte_times_out(
    pair: Pair, raws: tuple[RawSocket, RawSocket]
) -> None:
    _, right = pair
    right.settimeout(SHORT_S)
    record = b"\x17\x03\x03\x40\x00" + bytes(1 << 14)
    with dripping(raws[0], record), in_time(), pytest.raises(TimeoutError):
        right.recv_into(memoryview(bytearray(10)))


def test_send_to_a_peer_that_reads_slowly_times_out(
    pair: Pair, raws: tuple[RawSocket, RawSocket]
) -> None:
    left, _ = pair
    raws[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    left.settimeout(SHORT_S)
    enough = threading.Event()

    def sip() -> None:
        while not enough.wait(DRIP_S):
            raws[1].recv(1 << 12)

    thread = threading.Thread(target=sip)
    thread.start()
    try:
        with in_time(), pytest.raises(TimeoutError):
            left.send(memoryview(bytes(SEND_BYTES_MAX)))
    finally:
        left.shutdown(socket.SHUT_RDWR)
        enough.set()
        thread.join()


def test_nonblocking_receive_reads_at_most_once(
    pair: Pair, raws: tuple[RawSocket, RawSocket]
) -> None:
    """If one call could read repeatedly, a peer that sends empty records could block the caller for
    ever."""
    _, right = pair
    right.settimeout(0)
    raws[1].forged = b"\x17\x03\x03\x40\x00" + bytes(10)
    with pytest.raises(BlockingIOError):
        right.recv_into(memoryview(bytearray(10)))
    assert len(raws[1].forged) == 14


def test_bytes_that_are_not_tls_records_raise_an_error(
    pair: Pair, raws: tuple[RawSocket, RawSocket]
) -> None:
    _, right = pair
    raws[0].sendall(os.urandom(100))
    with pytest.raises(OSError):
        right.recv_into(memoryview(bytearray(10)))


def test_peer_that_causes_too_much_unsent_tls_output_is_dropped(pair: Pair) -> None:
    _, right = pair
    right._outgoing.write(bytes(RECORDS_BYTES + 1))
    with pytest.raises(ConnectionAbortedError):
        right.recv_into(memoryview(bytearray(10)))


def test_bytes_after_leaving_encryption_are_sent_unencrypted(
    pair: Pair,
) -> None:
    left, right = pair
    left.send(memoryview(b"the last of it"))
    left.leave_encryption()
    assert left.send(memoryview(b"in clear, in view")) == 17
    scratch = memoryview(bytearray(14))
    assert right.recv_into(scratch) == 14
    assert bytes(scratch) == b"the last of it"
    right.leave_encryption()
    left.send(memoryview(b" of all"))
    arrived, few = bytearray(), memoryview(bytearray(5))
    while len(arrived) < 24:
        arrived += few[: right.recv_into(few)]
    assert arrived == b"in clear, in view of all"

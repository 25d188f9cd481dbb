"""Single chunks are requested from one peer, and are not stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from p2ptrain.dataplane import SecureSocket, Uplink, plain_pair
from p2ptrain.errors import ChunkCorrupt, P2PTrainError, PeerLost, PeerTooSlow, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.store import digest_of
from p2ptrain.swarm import OneSource
from p2ptrain.swarm.wire import receive_request, send_response

CHUNK = b"a chunk" * 1000
STALL_S = 100.0
"""Far longer than a local answer takes."""


@contextmanager
def source(
    serve: Callable[[SecureSocket], object],
    stall_s: float = STALL_S,
    downlink: Uplink | None = None,
) -> Iterator[OneSource]:
    ours, theirs = plain_pair(PeerId("asker"), PeerId("owner"), deadline_s=STALL_S)

    def run() -> None:
        with suppress(P2PTrainError):
            serve(theirs)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield OneSource(ours, downlink, stall_s)
    finally:
        ours.close()
        thread.join(STALL_S)
        theirs.close()
        assert not thread.is_alive()


def serves(*answers: bytes | None) -> Callable[[SecureSocket], None]:
    def serve(sock: SecureSocket) -> None:
        for answer in answers:
            receive_request(sock)
            send_response(sock, answer)

    return serve


def test_chunks_arrive_over_one_connection() -> None:
    other = b"another chunk"
    with source(serves(CHUNK, None, other)) as asked:
        assert asked.chunk(digest_of(CHUNK)) == CHUNK
        assert asked.chunk(digest_of(b"unknown")) is None
        assert asked.chunk(digest_of(other)) == other
        assert asked.received_bytes == len(CHUNK) + len(other)


def test_wrong_bytes_are_an_error() -> None:
    with source(serves(b"other bytes")) as asked, pytest.raises(ChunkCorrupt, match="digest"):
        asked.chunk(digest_of(CHUNK))


def test_malformed_answer_is_an_error() -> None:
    def serve(sock: SecureSocket) -> None:
        receive_request(sock)
        sock.send_all(b"\7\0\0\0\1x")

    with source(serve) as asked, pytest.raises(RemoteProtocolError, match="status 7"):
        asked.chunk(digest_of(CHUNK))


def test_silent_source_is_given_up_after_its_time() -> None:
    with source(receive_request, stall_s=0.05) as asked, pytest.raises(PeerTooSlow):
        asked.chunk(digest_of(CHUNK))


def test_request_ends_when_it_is_cancelled() -> None:
    def serve(sock: SecureSocket) -> None:
        receive_request(sock)
        asked.end()

    with source(serve) as asked, pytest.raises(PeerLost, match="shut down here"):
        asked.chunk(digest_of(CHUNK))


def test_chunks_obey_the_limit_of_the_downlink() -> None:
    """The limit is a byte a second, so the chunk would take hours: `end` releases it."""
    downlink = Uplink(1.0, burst_bytes=1)

    def serve(sock: SecureSocket) -> None:
        receive_request(sock)
        send_response(sock, CHUNK)
        while not downlink.asked_bytes:
            moment.wait(0.001)
        asked.end()

    moment = threading.Event()
    with source(serve, downlink=downlink) as asked:
        assert asked.chunk(digest_of(CHUNK)) == CHUNK
    assert downlink.asked_bytes == len(CHUNK)
    downlink.close()

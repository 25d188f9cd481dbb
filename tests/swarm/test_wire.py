"""Valid and malformed requests and responses over a socket pair."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.dataplane import PeerSocket, plain_pair
from p2ptrain.encoding import pack
from p2ptrain.errors import PeerLost, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.store import CHUNK_BYTES_MAX, MemoryDisk, Store, digest_of
from p2ptrain.swarm import ChunkServer
from p2ptrain.swarm.wire import (
    REQUEST_BYTES_MAX,
    SLICE_BYTES,
    receive_request,
    receive_response,
    send_request,
    send_response,
)

Pair = tuple[PeerSocket, PeerSocket]
Serve = Callable[..., ChunkServer]


def received(sock: PeerSocket, buffer: bytearray) -> bytes:
    response = receive_response(sock, buffer, 5.0)
    assert response is not None
    return bytes(response)


@pytest.fixture
def pair() -> Iterator[Pair]:
    client, server = plain_pair(PeerId("client"), PeerId("server"))
    yield client, server
    client.close()
    server.close()


@pytest.fixture
def buffer() -> bytearray:
    return bytearray(CHUNK_BYTES_MAX)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def store(disk: MemoryDisk) -> Store:
    return Store(Path("/store"), disk=disk, chunk_bytes=1024)


@pytest.fixture
def served(pair: Pair, store: Store) -> Iterator[Serve]:
    """Return a function that serves `store` on the pair. After the test, check that the server has
    ended.
    """
    threads: list[threading.Thread] = []

    def serve(**options: Any) -> ChunkServer:
        server = ChunkServer(store, **options)
        threads.append(threading.Thread(target=server, args=(pair[1], {"purpose": "swarm"})))
        threads[0].start()
        return server

    yield serve
    pair[0].close()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()


def test_request_and_responses_arrive(pair: Pair, buffer: bytearray) -> None:
    client, server = pair
    send_request(client, digest_of(b"chunk"))
    assert receive_request(server) == digest_of(b"chunk")
    send_response(server, b"chunk")
    send_response(server, None)
    send_response(server, b"")
    assert received(client, buffer) == b"chunk"
    assert receive_response(client, buffer, 5.0) is None
    assert received(client, buffer) == b""


def test_rate_limit_is_applied_to_every_slice(pair: Pair, buffer: bytearray) -> None:
    client, server = pair
    chunk = bytes(2 * SLICE_BYTES + 7)
    asked: list[int] = []
    sender = threading.Thread(target=send_response, args=(server, chunk, asked.append))
    sender.start()
    assert len(received(client, buffer)) == len(chunk)
    sender.join()
    assert asked == [SLICE_BYTES, SLICE_BYTES, 7]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"\xff" * 40,
        pack({}),
        pack({"chunk": "ab" * 32}),
        pack({"chunk": bytes(31)}),
        pack({"chunk": bytes(33)}),
        pack({"chunk": bytes(32), "more": 1}),
        pack([bytes(32)]),
        pack({"chunk": bytes(32)}) + b"\0",
    ],
)
def test_malformed_request_raises_remote_protocol_error(pair: Pair, request_bytes: bytes) -> None:
    client, server = pair
    client.send_frame(request_bytes)
    with pytest.raises(RemoteProtocolError):
        receive_request(server)


def test_oversized_request_is_refused_before_it_is_read(pair: Pair) -> None:
    client, server = pair
    client.send_all((REQUEST_BYTES_MAX + 1).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError):
        receive_request(server)


@pytest.mark.parametrize(
    "header", [(0, CHUNK_BYTES_MAX + 1), (0, 2**32 - 1), (1, 5), (2, 0), (255, 255)]
)
def test_malformed_response_raises_remote_protocol_error(
    pair: Pair, buffer: bytearray, header: bytes
) -> None:
    client, server = pair
    status, length = header
    server.send_all(bytes([status]) + length.to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError):
        receive_response(client, buffer, 5.0)


def test_server_sends_held_chunks_and_reports_missing_ones(
    pair: Pair, buffer: bytearray, store: Store, served: Serve
) -> None:
    client, _ = pair
    held = store.put_chunk(b"held")
    served()
    for digest in (held, digest_of(b"absent"), held):
        send_request(client, digest)
    assert received(client, buffer) == b"held"
    assert receive_response(client, buffer, 5.0) is None
    assert received(client, buffer) == b"held"
    assert receive_after_close(client) == "lost"


def receive_after_close(client: PeerSocket) -> str:
    client.close()
    with pytest.raises(PeerLost):
        client.receive_frame()
    return "lost"


def test_server_applies_the_rate_limit_of_its_client(
    pair: Pair, buffer: bytearray, store: Store, served: Serve
) -> None:
    asked: list[tuple[PeerId, int]] = []
    served(limit=lambda peer, count: asked.append((peer, count)))
    send_request(pair[0], store.put_chunk(b"x" * 100))
    assert received(pair[0], buffer) == b"x" * 100
    assert asked == [("client", 100)]


def test_corrupt_chunk_is_answered_as_missing(
    pair: Pair, buffer: bytearray, disk: MemoryDisk, store: Store, served: Serve
) -> None:
    digest = store.put_chunk(b"x" * 100)
    disk.damage(store.chunk_path(digest), lambda data: b"y" * 100)
    served()
    send_request(pair[0], digest)
    assert receive_response(pair[0], buffer, 5.0) is None


def test_server_disconnects_a_client_that_sends_nonsense(pair: Pair, store: Store) -> None:
    client, sock = pair
    client.send_frame(b"GET / HTTP/1.1")
    with pytest.raises(RemoteProtocolError):
        ChunkServer(store)(sock, {})


def test_server_disconnects_a_silent_client(pair: Pair, store: Store) -> None:
    ChunkServer(store, idle_s=0.01)(pair[1], {})

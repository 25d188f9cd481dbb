"""The swarm's wire format: requests in one direction, chunks in the other, in the same order.

    request    frame of canonical msgpack {"chunk": 32 bytes}, at most 64 KiB
    response   status (1 byte), length (4 bytes, big endian), then `length` bytes of the chunk

A client may send several requests before the first response arrives, so that it pays the path's
latency once. This module checks the length of a response against its limit; the caller checks the
digest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from p2ptrain.dataplane import SecureSocket
from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest
from p2ptrain.store import CHUNK_BYTES_MAX

PURPOSE = "swarm"
"""The purpose in the hello that selects the chunk server."""

REQUEST_BYTES_MAX = 64 * 2**10
"""Maximum bytes of a request. A request takes 41 bytes; the rest is room for requests of a later
version."""

SLICE_BYTES = 64 * 2**10
"""Bytes sent at a time. The rate limiter is called before each slice. Slices are short, so a reduce
can send its data in between. A client also measures progress in slices."""

HELD, MISSING = 0, 1
_RESPONSE = struct.Struct(">BI")

Limit = Callable[[int], object]
"""Called with a number of bytes before they are sent; blocks until they may be sent."""


def send_request(sock: SecureSocket, digest: Digest) -> None:
    """Request a chunk."""
    sock.send_frame(pack({"chunk": bytes.fromhex(digest)}))


def receive_request(sock: SecureSocket) -> Digest:
    """Return the digest that the client requests. Raises RemoteProtocolError for anything else."""
    request = unpack(sock.receive_frame(REQUEST_BYTES_MAX), bytes_max=REQUEST_BYTES_MAX)
    raw = fields(request, chunk=bytes)["chunk"]
    assert isinstance(raw, bytes)
    if len(raw) != 32:
        raise RemoteProtocolError("a chunk digest is not 32 bytes long", peer=sock.peer)
    return Digest(raw.hex())


def send_response(sock: SecureSocket, chunk: bytes | None, limit: Limit | None = None) -> None:
    """Answer a request with the chunk, or report that we do not have it."""
    if chunk is None:
        sock.send_all(_RESPONSE.pack(MISSING, 0))
        return
    sock.send_all(_RESPONSE.pack(HELD, len(chunk)))
    for piece in _slices(memoryview(chunk)) if limit else [memoryview(chunk)]:
        if limit:
            limit(len(piece))
        sock.send_all(piece)


def receive_response(
    sock: SecureSocket, buffer: bytearray | memoryview, stall_s: float
) -> memoryview | None:
    """Return the received bytes as a view of `buffer`; None if the peer lacks the chunk.

    `buffer` must have the length of the longest chunk, and can be reused for the next one. Each
    slice may take `stall_s`, because a peer is slow but not stuck while a reduce uses most of its
    uplink.
    """
    assert len(buffer) == CHUNK_BYTES_MAX
    header = bytearray(_RESPONSE.size)
    sock.set_deadline(stall_s)
    sock.receive_into(header)
    status, length = _RESPONSE.unpack(header)
    if status == MISSING and length == 0:
        return None
    if status != HELD or length > CHUNK_BYTES_MAX:
        raise RemoteProtocolError(
            f"an invalid response: status {status} with {length} bytes", peer=sock.peer
        )
    view = memoryview(buffer)[:length]
    for piece in _slices(view):
        sock.set_deadline(stall_s)
        sock.receive_into(piece)
    return view


def _slices(view: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(view), SLICE_BYTES):
        yield view[start : start + SLICE_BYTES]

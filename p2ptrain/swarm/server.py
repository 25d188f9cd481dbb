"""Serves chunks to whoever the listener lets in: one thread a connection.

A chunk is hashed when it is read from the store, so that rot on our disk is never passed on: what
is damaged is answered like what is missing. What a peer can make us do is bounded: how many chunks
wait in memory until it reads them, and how often it is told that we lack something. The server
knows no blobs and no runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from p2ptrain.dataplane import SecureSocket
from p2ptrain.errors import PeerError, StoreError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.swarm.memory_quota import InHand
from p2ptrain.swarm.wire import receive_request, send_response

PeerLimit = Callable[[PeerId, int], object]
"""Called with a number of bytes before they are sent to a peer; returns when they may be."""

IDLE_S = 120.0
"""How long a client may think between requests: longer than it waits for any other source."""

SEND_S = 120.0
"""How long one chunk may take to send: 4 MiB at 280 kbit/s, below which a client is no use. Where
we are limited ourselves, which is not the client's fault, it counts for each slice."""

MISS_S, MISS_S_MAX = 0.001, 0.05
"""After so many misses in a row as many times the first, and the second at most, pass before the
next answer: who asks for what nobody has costs us 20 lookups a second, and not a core. Who fetches
a gigabyte of which we have nothing is told so within twelve seconds."""


class Chunks(Protocol):
    """Where chunks are read from: a store, one that is only read, or `HotChunks` before either."""

    def get_chunk(self, digest: Digest) -> bytes:
        """The bytes, checked. Raises StoreError."""


class ChunkServer:
    """A listener's handler for `swarm.PURPOSE`.

    `limit` is called with a peer and a number of bytes before they are sent there and returns when
    they may be, for instance `take` of `PeerShares` of the uplink: so that the ring wins.
    """

    def __init__(
        self,
        store: Chunks,
        *,
        limit: PeerLimit | None = None,
        idle_s: float = IDLE_S,
        in_hand: InHand | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._store = store
        self._limit = limit
        self._idle_s = idle_s
        self._in_hand = in_hand or InHand()
        self._pause = pause
        self._counting = threading.Lock()
        self._bytes_sent = 0

    @property
    def bytes_sent(self) -> int:
        """Bytes of chunks sent since the start."""
        return self._bytes_sent

    def __call__(self, sock: SecureSocket, hello: Mapping[str, object]) -> None:
        """Serve one connection until the client closes it.

        Raises RemoteProtocolError if it sends what is not a request.
        """
        misses = 0
        try:
            while True:
                misses = 0 if self._serve_one(sock, misses) else misses + 1
        except PeerError:
            return  # It has all that it wanted, or is gone: the same to us.

    def _serve_one(self, sock: SecureSocket, misses: int) -> bool:
        """Whether we had the chunk. Before it there were so many `misses` in a row."""
        sock.set_deadline(self._idle_s)
        digest = receive_request(sock)
        if misses:
            self._pause(min(misses * MISS_S, MISS_S_MAX))
        with self._in_hand.one_for(sock.peer, SEND_S):
            chunk = self._chunk(digest)
            sock.set_deadline(SEND_S)
            send_response(sock, chunk, self._limit and partial(self._may_send, sock, self._limit))
        with self._counting:
            self._bytes_sent += len(chunk or b"")
        return chunk is not None

    def _may_send(self, sock: SecureSocket, limit: PeerLimit, count: int) -> None:
        limit(sock.peer, count)
        sock.set_deadline(SEND_S)

    def _chunk(self, digest: Digest) -> bytes | None:
        try:
            return self._store.get_chunk(digest)
        except StoreError:
            return None

"""Serves chunks to peers that the listener admits, with one thread per connection.

A chunk is hashed when it is read from the store, so that disk corruption is never passed on: a
damaged chunk is reported as missing. Two things are limited per peer: the chunks in memory that the
peer has not read yet, and the rate of answers about missing chunks. The server has no notion of
blobs or runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from p2ptrain.dataplane import SecureSocket
from p2ptrain.errors import PeerError, StoreError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.swarm.memory_quota import MemoryQuota
from p2ptrain.swarm.wire import receive_request, send_response

PeerLimit = Callable[[PeerId, int], object]
"""Called with a peer and a number of bytes before they are sent; blocks until they may be sent.
`wait_to_send` of the uplink's `PeerShares` is such a function; it gives the ring precedence."""

IDLE_S = 120.0
"""Seconds that a client may pause between requests. This is longer than a client waits for other
sources."""

SEND_S = 120.0
"""Seconds that sending one chunk may take: 4 MiB at 280 kbit/s; slower clients are not served. If
our upload is limited, which is not the client's fault, each slice of 64 KiB may take this long."""

MISS_S, MISS_S_MAX = 0.001, 0.05
"""Pause before answering that a chunk is missing: MISS_S times the consecutive misses, up to
MISS_S_MAX. A peer that asks only for missing chunks costs 20 lookups a second, not a core. A peer
that asks for a gigabyte that we do not have learns this within twelve seconds."""


class ChunkSource(Protocol):
    """A source of chunks: a store, a StoreReader, or `HotChunks` in front of either."""

    def get_chunk(self, digest: Digest) -> bytes:
        """Return the verified bytes. Raises StoreError."""


class ChunkServer:
    """A listener's handler for connections with the purpose `swarm.PURPOSE`."""

    def __init__(
        self,
        store: ChunkSource,
        *,
        limit: PeerLimit | None = None,
        idle_s: float = IDLE_S,
        quota: MemoryQuota | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._store = store
        self._limit = limit
        self._idle_s = idle_s
        self._quota = quota or MemoryQuota()
        self._pause = pause

    def __call__(self, sock: SecureSocket, hello: Mapping[str, object]) -> None:
        """Serve one connection until the client closes it.

        Raises RemoteProtocolError if the client sends anything but a request.
        """
        misses = 0
        try:
            while True:
                misses = 0 if self._serve_one(sock, misses) else misses + 1
        except PeerError:
            return  # The client has everything that it wanted, or has left. Both are fine.

    def _serve_one(self, sock: SecureSocket, misses: int) -> bool:
        """Answer one request, after `misses` consecutive misses. Return whether we had the
        chunk.
        """
        sock.set_deadline(self._idle_s)
        digest = receive_request(sock)
        if misses:
            self._pause(min(misses * MISS_S, MISS_S_MAX))
        with self._quota.one_for(sock.peer, SEND_S):
            chunk = self._chunk(digest)
            sock.set_deadline(SEND_S)
            send_response(sock, chunk, self._limit and partial(self._may_send, sock, self._limit))
        return chunk is not None

    def _may_send(self, sock: SecureSocket, limit: PeerLimit, count: int) -> None:
        limit(sock.peer, count)
        sock.set_deadline(SEND_S)

    def _chunk(self, digest: Digest) -> bytes | None:
        try:
            return self._store.get_chunk(digest)
        except StoreError:
            return None

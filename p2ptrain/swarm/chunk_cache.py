"""A cache in memory for chunks that several peers want at about the same time.

After a commit, all peers that missed the reduce want the same update, and joiners want the same
snapshot. Without the cache, each request would cost a read, a hash, and memory for as long as the
chunk is being sent. With the cache, all requests share one copy. This module knows nothing about
sockets or peers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from p2ptrain.ids import Digest
from p2ptrain.store.blob import CHUNK_BYTES_MAX
from p2ptrain.swarm.server import ChunkSource

HOT_BYTES = 16 * CHUNK_BYTES_MAX
"""Maximum bytes in the cache: 16 chunks of maximum length, which is 64 MiB. The number is a guess
that nobody has measured: peers that fetch the same blob at the same time are assumed to be at most
16 chunks apart. If it is too small, a chunk is evicted before the next peer requests it, so each
request costs a read and a hash again, as without the cache. If it is too large, the node holds
memory for chunks that nobody requests again. `memory_quota` limits the chunks that are being sent,
whatever this number is."""


class HotChunks:
    """Wraps `source` and keeps the most recently requested chunks in memory, up to `bytes_max`.

    Any number of threads may use it. If several request the same chunk, only one reads it. Failed
    reads are not cached, so a chunk that is repaired or fetched later is found.
    """

    def __init__(self, source: ChunkSource, *, bytes_max: int = HOT_BYTES) -> None:
        self._source = source
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Digest, bytes] = OrderedDict()
        self._bytes = 0
        self._reading: set[Digest] = set()
        self._changed = threading.Condition()

    def get_chunk(self, digest: Digest) -> bytes:
        """Return the verified bytes. Raises StoreError."""
        with self._changed:
            self._changed.wait_for(lambda: digest not in self._reading)
            if digest in self._kept:
                self._kept.move_to_end(digest)
                return self._kept[digest]
            self._reading.add(digest)
        chunk = None
        try:
            chunk = self._source.get_chunk(digest)
            return chunk
        finally:
            with self._changed:
                self._reading.discard(digest)
                if chunk is not None:
                    self._kept[digest] = chunk
                    self._bytes += len(chunk)
                while self._bytes > self._bytes_max:
                    self._bytes -= len(self._kept.popitem(last=False)[1])
                self._changed.notify_all()

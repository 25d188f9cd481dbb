"""A limit on the chunks in memory that are being sent to peers.

A connection that makes requests costs little. A connection that is answered costs a whole chunk
until its peer has read the answer. So a peer whose share is in memory waits until some of it is
read, and no number of connections uses more than the stated memory. This module knows no bytes and
no sockets.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from p2ptrain.errors import PeerTooSlow
from p2ptrain.ids import PeerId

CHUNKS_MAX = 64
"""256 MiB if chunks have 4 MiB, and less if several peers are sent the same chunk."""

CHUNKS_PER_PEER_MAX = 4
"""A peer may fetch its blocks, an update and a snapshot at once, each over its own connection. To
block all others, sixteen peers would have to collude and read nothing, and they could do it for two
minutes per chunk."""


class MemoryQuota:
    """Grants turns at holding a chunk for a peer. For any number of threads."""

    def __init__(
        self, chunks_max: int = CHUNKS_MAX, per_peer_max: int = CHUNKS_PER_PEER_MAX
    ) -> None:
        self._chunks_max = chunks_max
        self._per_peer_max = per_peer_max
        self._held: Counter[PeerId] = Counter()
        self._changed = threading.Condition()

    @contextmanager
    def one_for(self, peer: PeerId, deadline_s: float) -> Iterator[None]:
        """Hold a chunk for `peer` within the block. Raises PeerTooSlow after `deadline_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._fits(peer), deadline_s):
                raise PeerTooSlow(f"chunks that wait to be read, for {deadline_s:.0f} s", peer=peer)
            self._held[peer] += 1
        try:
            yield
        finally:
            with self._changed:
                self._held -= Counter((peer,))
                self._changed.notify_all()

    def _fits(self, peer: PeerId) -> bool:
        return self._held[peer] < self._per_peer_max and self._held.total() < self._chunks_max

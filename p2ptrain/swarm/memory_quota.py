"""A limit on the memory for chunks that are being sent to peers.

A pending request costs little memory. An answer occupies a whole chunk until the peer has read it.
So a peer that has used up its share gets its next answer only when it has read an earlier one, and
the total stays within the limit for any number of connections. This module only counts chunks; it
does not handle their bytes or sockets.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from p2ptrain.errors import PeerTooSlow
from p2ptrain.ids import PeerId

CHUNKS_MAX = 64
"""Maximum number of chunks that are being sent: 64 chunks of 4 MiB take 256 MiB, or less if several
peers are sent the same chunk."""

CHUNKS_PER_PEER_MAX = 4
"""Maximum number of chunks that are being sent to one peer, which may fetch its blocks, an update
and a snapshot at once, each over its own connection. Sixteen colluding peers that do not read could
block all other peers, for two minutes per chunk."""


class MemoryQuota:
    """Limits the chunks held in memory, in total and per peer. Thread-safe."""

    def __init__(
        self, chunks_max: int = CHUNKS_MAX, per_peer_max: int = CHUNKS_PER_PEER_MAX
    ) -> None:
        self._chunks_max = chunks_max
        self._per_peer_max = per_peer_max
        self._held: Counter[PeerId] = Counter()
        self._changed = threading.Condition()

    @contextmanager
    def one_for(self, peer: PeerId, deadline_s: float) -> Iterator[None]:
        """Reserve room for one chunk for `peer` until the `with` block ends. Raises PeerTooSlow if
        there is no room within `deadline_s`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._fits(peer), deadline_s):
                raise PeerTooSlow(
                    "the quota had no memory free for a chunk to this peer within "
                    f"{deadline_s:.0f} s",
                    peer=peer,
                )
            self._held[peer] += 1
        try:
            yield
        finally:
            with self._changed:
                self._held -= Counter((peer,))
                self._changed.notify_all()

    def _fits(self, peer: PeerId) -> bool:
        return self._held[peer] < self._per_peer_max and self._held.total() < self._chunks_max

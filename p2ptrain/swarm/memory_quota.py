"""How many chunks are in memory at once because somebody is being sent them.

A connection that asks costs little, and one that is answered a whole chunk for as long as its
peer takes to read it. So whoever has its share in hand waits for it to be taken, and no number of
connections takes more than the memory that is stated here. It knows no bytes and no sockets.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from p2ptrain.errors import PeerTooSlow
from p2ptrain.ids import PeerId

CHUNKS_MAX = 64
"""256 MiB where chunks have 4 MiB, and less by as much as several are sent the same."""

CHUNKS_PER_PEER_MAX = 4
"""A peer fetches its blocks, an update and a snapshot, each over a connection. Sixteen peers that
read nothing would have to join forces to keep all others waiting, and for two minutes a chunk."""


class InHand:
    """Turns at holding a chunk for a peer. For any number of threads."""

    def __init__(
        self, chunks_max: int = CHUNKS_MAX, per_peer_max: int = CHUNKS_PER_PEER_MAX
    ) -> None:
        self._chunks_max = chunks_max
        self._per_peer_max = per_peer_max
        self._held: Counter[PeerId] = Counter()
        self._changed = threading.Condition()

    @contextmanager
    def one_for(self, peer: PeerId, deadline_s: float) -> Iterator[None]:
        """Within the block a chunk may be held for `peer`. Raises PeerTooSlow: not in that time."""
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

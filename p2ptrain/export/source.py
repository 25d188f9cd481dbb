"""Read the weights to export from a snapshot, piece by piece, and check every byte.

A model may be larger than this machine's memory, so θ is read in order, and only one chunk and one
piece are in memory. Each chunk is compared with its digest when it is read, and the list of digests
with the snapshot's own digest. So only bytes of the snapshot are returned. This module does not
know whether a quorum certified the snapshot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from blake3 import blake3

from p2ptrain.errors import ChunkMissing, LocalProtocolError, ManifestInvalid
from p2ptrain.ids import Digest
from p2ptrain.state import SNAPSHOT, Float32Vector
from p2ptrain.store import StoreReader
from p2ptrain.suggested_command import to_paste

ELEMENT_BYTES = 4
PIECE_ELEMENTS = 2**20
"""Elements per piece: 4 MiB, like a chunk."""


class Theta(ABC):
    """Reads θ once, from its first element to its last."""

    def __init__(self, numel: int) -> None:
        self._numel = numel
        self._position = 0
        self._hasher = blake3()

    def pieces(self, numel: int) -> Iterator[Float32Vector]:
        """Yield the next `numel` elements, at most PIECE_ELEMENTS at a time. Raises StoreError."""
        if self._position + numel > self._numel:
            end = self._position + numel
            raise LocalProtocolError(f"θ has {self._numel} elements; {end} were requested")
        while numel:
            piece = self._read(min(numel, PIECE_ELEMENTS))
            self._position += len(piece)
            numel -= len(piece)
            self._hasher.update(piece.data.cast("B"))
            yield piece

    @property
    def digest(self) -> Digest:
        """blake3 of all bytes read so far. After the last element, this is the digest of θ."""
        return Digest(self._hasher.hexdigest())

    @abstractmethod
    def _read(self, numel: int) -> Float32Vector:
        """Return the next `numel` elements, which begin at `_position`."""


class ThetaInMemory(Theta):
    """θ in memory, where a replay computed it."""

    def __init__(self, theta: Float32Vector) -> None:
        super().__init__(len(theta))
        self._theta = theta

    def _read(self, numel: int) -> Float32Vector:
        return self._theta[self._position : self._position + numel]


class ThetaOfSnapshot(Theta):
    """θ of the snapshot with this `digest`, which has `numel` elements.

    The constructor and `pieces` raise StoreError: a part of the snapshot is missing or damaged, or
    the blob is not a snapshot of `numel` elements.
    """

    def __init__(self, store: StoreReader, digest: Digest, numel: int) -> None:
        super().__init__(numel)
        self.manifest = manifest = store.manifest(digest)
        both_bytes = 2 * numel * ELEMENT_BYTES  # A snapshot contains θ and the momentum m.
        if manifest.kind != SNAPSHOT or manifest.size != both_bytes:
            raise ManifestInvalid(
                f"{digest} is a {manifest.kind} of {manifest.size} bytes, not a snapshot of "
                f"{both_bytes}"
            )
        self._snapshot = digest
        self._store = store
        self._chunks = iter(manifest.chunks)
        self._held = memoryview(b"")

    def _read(self, numel: int) -> Float32Vector:
        piece = bytearray(numel * ELEMENT_BYTES)
        filled = 0
        while filled < len(piece):
            if not self._held:
                self._held = memoryview(self._chunk(next(self._chunks)))
            taken = min(len(self._held), len(piece) - filled)
            piece[filled : filled + taken] = self._held[:taken]
            self._held = self._held[taken:]
            filled += taken
        return np.frombuffer(piece, dtype="<f4")

    @property
    def rest(self) -> bytes:
        """The unread bytes of the chunk that was read last. After the whole of θ, they are the
        beginning of m."""
        return bytes(self._held)

    def _chunk(self, digest: Digest) -> bytes:
        try:
            return self._store.get_chunk(digest)
        except ChunkMissing as exc:
            home, named = self._store.root.parent, self._snapshot[:12]
            fetch, pin = to_paste(home, f"ckpt fetch {named}"), to_paste(home, f"ckpt pin {named}")
            raise ChunkMissing(
                f"the snapshot {self._snapshot[:12]}… is incomplete in this store",
                evidence=[f"chunk {digest} is missing"],
                likely="the snapshot was never fetched completely; or it is an old one, and the "
                "node in this home has removed it since",
                do=f"{fetch}, and {pin}, so that the node does not remove it",
            ) from exc

"""A part of a source of chunks, for peers that may not have all of them."""

from __future__ import annotations

from collections.abc import Iterable

from p2ptrain.errors import ChunkMissing
from p2ptrain.ids import Digest
from p2ptrain.swarm.server import ChunkSource


class NamedChunks:
    """The chunks of `source` that were named. Any number of threads may read them."""

    def __init__(self, source: ChunkSource) -> None:
        self._source = source
        self._names: frozenset[Digest] = frozenset()

    def name(self, digests: Iterable[Digest]) -> None:
        """Let these chunks be read from now on, and no others."""
        self._names = frozenset(digests)

    def get_chunk(self, digest: Digest) -> bytes:
        """Return the verified bytes. Raises StoreError: the source does not have the chunk, or the
        chunk is not named."""
        if digest not in self._names:
            raise ChunkMissing("this chunk is not public")
        return self._source.get_chunk(digest)

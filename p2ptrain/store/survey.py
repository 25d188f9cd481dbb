"""Survey the contents of a store without locking or changing anything.

A node may be using the store at the same time, so a chunk that vanishes is not an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.ids import Digest
from p2ptrain.store.blob import CHUNK_BYTES_MAX, digest_of
from p2ptrain.store.disk import Disk
from p2ptrain.store.reader import StoreReader

LOOSE = "data"
"""The kind shown for chunks that do not belong to any blob here: data blocks, or remains of a
removed blob."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The number of blobs of one kind, and the disk space that they take.

    A chunk that several blobs share is counted once, for the blob whose digest sorts first.
    """

    blobs: int = 0
    chunks: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Survey:
    """Surveys the store under `root`."""

    root: Path
    disk: Disk

    def usage(self) -> dict[str, Usage]:
        """Return the usage by kind of blob, in alphabetical order. Raises StoreError."""
        reader = StoreReader(self.root, self.disk)
        uncounted = dict(reader.listed())
        usage: dict[str, Usage] = {}

        def count(kind: str, chunks: Iterable[Digest], blobs: int) -> None:
            sizes = [uncounted.pop(chunk) for chunk in chunks if chunk in uncounted]
            known = usage.get(kind, Usage())
            usage[kind] = Usage(
                known.blobs + blobs, known.chunks + len(sizes), known.bytes + sum(sizes)
            )

        for digest in list(uncounted):
            manifest = reader.manifest_if_any(digest)
            if manifest is not None:
                count(manifest.kind, (digest, *manifest.chunks), 1)
        if uncounted:
            count(LOOSE, list(uncounted), 0)
        return dict(sorted(usage.items()))

    def damaged(self) -> Iterator[tuple[Digest, bool]]:
        """Hash every chunk; yield its digest and whether it is damaged. Raises StoreError.

        A chunk that was set aside as damaged, and has not been replaced, also counts as damaged.
        """
        reader = StoreReader(self.root, self.disk)
        for digest, _ in reader.listed():
            data = reader.unchecked(digest, CHUNK_BYTES_MAX + 1)
            if data is not None:
                yield digest, digest_of(data) != digest
        for digest in reader.set_aside():
            yield digest, True

"""Survey the contents of a store without locking or changing anything.

A node may be using the store at the same time, so a chunk that vanishes is not an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from p2ptrain.ids import Digest
from p2ptrain.store.blob import CHUNK_BYTES_MAX, digest_of
from p2ptrain.store.disk import Disk
from p2ptrain.store.reader import StoreReader

LOOSE = "data"
"""The kind shown for chunks that do not belong to any blob here: data blocks, or remains of a
removed blob."""


@dataclass(slots=True)
class Usage:
    """The number of blobs of one kind, and the disk space that they take.

    A chunk that several blobs share is counted once, for the blob whose digest sorts first.
    """

    blobs: int = 0
    chunks: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Survey:
    """Surveys the store under `root`."""

    root: Path
    disk: Disk
    _sizes: dict[Digest, int] = field(default_factory=dict)

    def usage(self) -> dict[str, Usage]:
        """Return the usage by kind of blob, in alphabetical order. Raises StoreError."""
        reader = StoreReader(self.root, self.disk)
        self._sizes = dict(reader.listed())
        usage: dict[str, Usage] = {}
        for digest in list(self._sizes):
            manifest = reader.manifest_if_any(digest)
            if manifest is not None:
                of_kind = usage.setdefault(manifest.kind, Usage())
                of_kind.blobs += 1
                for chunk in (digest, *manifest.chunks):
                    self._count(of_kind, chunk)
        for digest in list(self._sizes):
            self._count(usage.setdefault(LOOSE, Usage()), digest)
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

    def _count(self, usage: Usage, chunk: Digest) -> None:
        size = self._sizes.pop(chunk, None)
        if size is not None:
            usage.chunks += 1
            usage.bytes += size

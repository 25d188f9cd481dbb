"""What lies in a store, looked at from outside: nothing is locked and nothing is changed.

A node may be using the store meanwhile, so a chunk that is gone when its turn comes was removed,
and is no fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from p2ptrain.errors import ManifestInvalid
from p2ptrain.ids import Digest, is_digest
from p2ptrain.store.blob import (
    CHUNK_BYTES_MAX,
    BlobManifest,
    digest_of,
    looks_like_manifest,
)
from p2ptrain.store.disk import Disk, disk_errors

LOOSE = "data"
"""Chunks that no blob here lists are data blocks, or what is left of a blob that was removed."""

_START_BYTES = 32


@dataclass(slots=True)
class Usage:
    """Of one kind of blob: how many there are, and what they alone take of the disk.

    A chunk that several share is counted once, for the first in the order of their digests.
    """

    blobs: int = 0
    chunks: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Survey:
    root: Path
    disk: Disk
    _sizes: dict[Digest, int] = field(default_factory=dict)

    def usage(self) -> dict[str, Usage]:
        """By kind of blob, in alphabetical order. Raises StoreError."""
        self._sizes = dict(self._listed())
        usage: dict[str, Usage] = {}
        for digest in list(self._sizes):
            manifest = self._manifest(digest)
            if manifest is not None:
                of_kind = usage.setdefault(manifest.kind, Usage())
                of_kind.blobs += 1
                for chunk in (digest, *manifest.chunks):
                    self._count(of_kind, chunk)
        for digest in list(self._sizes):
            self._count(usage.setdefault(LOOSE, Usage()), digest)
        return dict(sorted(usage.items()))

    def damaged(self) -> Iterator[tuple[Digest, bool]]:
        """Hash every chunk: its digest, and whether it is damaged. Raises StoreError."""
        for digest, _ in self._listed():
            data = self._read(digest, CHUNK_BYTES_MAX + 1)
            if data is not None:
                yield digest, digest_of(data) != digest

    def _count(self, usage: Usage, chunk: Digest) -> None:
        size = self._sizes.pop(chunk, None)
        if size is not None:
            usage.chunks += 1
            usage.bytes += size

    def _manifest(self, digest: Digest) -> BlobManifest | None:
        start = self._read(digest, _START_BYTES)
        if start is None or not looks_like_manifest(start):
            return None
        try:
            return BlobManifest.from_wire(self._read(digest, CHUNK_BYTES_MAX) or b"")
        except ManifestInvalid:
            return None

    def _listed(self) -> Iterator[tuple[Digest, int]]:
        objects = self.root / "objects"
        with disk_errors("listing the store", self.root):
            if self.disk.size(objects) is None:
                return
            for fan in self.disk.names(objects):
                for name in self.disk.names(objects / fan):
                    size = self.disk.size(objects / fan / name)
                    if is_digest(fan + name) and size is not None:
                        yield Digest(fan + name), size

    def _read(self, digest: Digest, size: int) -> bytes | None:
        with disk_errors(f"reading chunk {digest[:12]}…", self.root):
            try:
                return self.disk.read(self.root / "objects" / digest[0] / digest[1:], 0, size)
            except FileNotFoundError:
                return None

"""Read a store without locking or changing anything, not even damaged chunks.

Use it where a node may be running that uses the same store, for example in an audit. A chunk that
the node removes meanwhile is reported as missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ManifestInvalid
from p2ptrain.ids import Digest, is_digest
from p2ptrain.store.blob import (
    CHUNK_BYTES_MAX,
    START_BYTES,
    BlobManifest,
    BlobReader,
    digest_of,
    looks_like_manifest,
)
from p2ptrain.store.disk import Disk, LocalDisk, disk_errors
from p2ptrain.store.objects import CORRUPT, FANOUT
from p2ptrain.suggested_command import to_paste


class StoreReader(BlobReader):
    """The chunks and blobs of the store in the directory `root`."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self._disk = disk or LocalDisk()

    def listed(self) -> Iterator[tuple[Digest, int]]:
        """Yield all chunks and their lengths, in order. Raises StoreError."""
        for fan, names in self._fans():
            for name in names:
                with disk_errors("listing the store", self.root):
                    size = self._disk.size(self.root / "objects" / fan / name)
                if is_digest(fan + name) and size is not None:
                    yield Digest(fan + name), size

    def set_aside(self) -> Iterator[Digest]:
        """Yield the chunks of which only a damaged copy remains. Raises StoreError."""
        for fan, names in self._fans():
            held = set(names)
            for name in (each.removesuffix(CORRUPT) for each in names if each.endswith(CORRUPT)):
                if name not in held and is_digest(fan + name):
                    yield Digest(fan + name)

    def _fans(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the chunk directories and the names in them; nothing if there is no store yet."""
        for fan in FANOUT:
            with disk_errors("listing the store", self.root):
                try:
                    names = self._disk.names(self.root / "objects" / fan)
                except FileNotFoundError:
                    return
            yield fan, names

    def has_chunk(self, digest: Digest) -> bool:
        with disk_errors("looking for a chunk", self.root):
            return self._disk.size(self._path(digest)) is not None

    def get_chunk(self, digest: Digest) -> bytes:
        """Return a chunk that matches its digest. Raises ChunkMissing, ChunkCorrupt."""
        data = self.unchecked(digest, CHUNK_BYTES_MAX + 1)
        if data is None:
            raise ChunkMissing(f"chunk {digest} is not in the store")
        if digest_of(data) != digest:
            repair = to_paste(self.root.parent, "store check --repair")
            raise ChunkCorrupt(
                f"chunk {digest} no longer matches its digest",
                likely="the disk that holds the store is faulty, or another program wrote into it",
                do=f"run {repair} while the node is stopped; a running node repairs it by itself",
            )
        return data

    def unchecked(self, digest: Digest, size: int) -> bytes | None:
        """Return the first `size` bytes of a chunk, not verified; None if it is not stored."""
        with disk_errors(f"reading chunk {digest[:12]}…", self.root):
            try:
                return self._disk.read(self._path(digest), 0, size)
            except FileNotFoundError:
                return None

    def manifest_if_any(self, digest: Digest) -> BlobManifest | None:
        """Return the manifest if the chunk is sound and is a manifest, else None."""
        start = self.unchecked(digest, START_BYTES)
        if start is None or not looks_like_manifest(start):
            return None
        try:
            return self.manifest(digest)
        except (ChunkMissing, ChunkCorrupt, ManifestInvalid):
            return None

    def _path(self, digest: Digest) -> Path:
        assert is_digest(digest)
        return self.root / "objects" / digest[0] / digest[1:]

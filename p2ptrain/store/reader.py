"""Read a store without locking or changing anything, not even damaged chunks.

Use it for audits, and wherever else a home is read whose node may be running. A chunk that the node
removes meanwhile is reported as missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ManifestInvalid
from p2ptrain.ids import Digest, is_digest
from p2ptrain.store.blob import (
    CHUNK_BYTES_MAX,
    BlobManifest,
    digest_of,
    looks_like_manifest,
    read_across,
    read_whole,
)
from p2ptrain.store.disk import Disk, LocalDisk, disk_errors
from p2ptrain.store.objects import CORRUPT, FANOUT
from p2ptrain.suggested_command import to_paste

_START_BYTES = 32


class StoreReader:
    """The chunks and blobs under the directory `root`, read as `Store` does."""

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
        """Return the verified bytes. Raises ChunkMissing, ChunkCorrupt."""
        data = self.unchecked(digest, CHUNK_BYTES_MAX + 1)
        if data is None:
            raise ChunkMissing(f"chunk {digest} is not in the store")
        if digest_of(data) != digest:
            raise self._corrupt(digest)
        return data

    def unchecked(self, digest: Digest, size: int) -> bytes | None:
        """Return the first `size` bytes of a chunk, not verified; None if it is not stored."""
        with disk_errors(f"reading chunk {digest[:12]}…", self.root):
            try:
                return self._disk.read(self._path(digest), 0, size)
            except FileNotFoundError:
                return None

    def manifest(self, digest: Digest) -> BlobManifest:
        """Return the manifest. Raises ChunkMissing, ChunkCorrupt, ManifestInvalid."""
        return BlobManifest.from_wire(self.get_chunk(digest))

    def manifest_if_any(self, digest: Digest) -> BlobManifest | None:
        """Return the manifest if the chunk is sound and is a manifest, else None."""
        start = self.unchecked(digest, _START_BYTES)
        if start is None or not looks_like_manifest(start):
            return None
        try:
            return self.manifest(digest)
        except (ChunkMissing, ChunkCorrupt, ManifestInvalid):
            return None

    def missing_chunks(self, digest: Digest) -> list[Digest]:
        """Return the missing chunks of the blob, each once, in order. Raises as `manifest` does."""
        chunks = dict.fromkeys(self.manifest(digest).chunks)
        return [chunk for chunk in chunks if not self.has_chunk(chunk)]

    def holds_blob(self, digest: Digest) -> bool:
        """Return whether all chunks of the blob are here. They are hashed only when they are
        read.
        """
        try:
            return not self.missing_chunks(digest)
        except (ChunkMissing, ChunkCorrupt):
            return False

    def read_blob(self, digest: Digest) -> bytes:
        """Return the whole blob, with every chunk verified."""
        return read_whole(self.manifest(digest), self._read_into)

    def read_blob_into(self, digest: Digest, *views: memoryview) -> BlobManifest:
        """Fill `views`, one after another, with the blob; together they have its exact size.

        Raises ChunkMissing, ChunkCorrupt, ManifestInvalid.
        """
        manifest = self.manifest(digest)
        read_across(manifest, views, self._read_into)
        return manifest

    def _read_into(self, digest: Digest, view: memoryview) -> None:
        data = self.get_chunk(digest)
        if len(data) != len(view):
            raise ManifestInvalid(f"chunk {digest[:12]}… has {len(data)} bytes, not {len(view)}")
        view[:] = data

    def _path(self, digest: Digest) -> Path:
        assert is_digest(digest)
        return self.root / "objects" / digest[0] / digest[1:]

    def _corrupt(self, digest: Digest) -> ChunkCorrupt:
        repair = to_paste(self.root.parent, "store check --repair")
        return ChunkCorrupt(
            f"chunk {digest} no longer matches its digest",
            likely="the disk that holds the store is faulty, or another program wrote into it",
            do=f"run {repair} while the node is stopped; a running node repairs chunks by itself",
        )

"""The directory of chunks: objects/a/bcdef…, one file per chunk, named by its digest.

A name appears only when its bytes are durable (write to a temporary file, sync, rename). So an
existing name has the right content unless the disk is corrupted. Every chunk is hashed when it is
read. A bad file is set aside as `….corrupt`, and the chunk counts as missing from then on.

Names become durable later, in `make_durable`, which syncs each changed directory once for many
chunks. Code must call `make_durable` before it writes references to chunks.

All methods may be called from any thread. This module does not know which data refer to a chunk.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.errors import ChunkCorrupt, ChunkMissing, ManifestInvalid, StoreError
from p2ptrain.ids import Digest, is_digest
from p2ptrain.store.blob import CHUNK_BYTES_MAX, Buffer, digest_of
from p2ptrain.store.disk import Disk, disk_errors

CORRUPT = ".corrupt"
"""The suffix of a file that was set aside."""

FANOUT = "0123456789abcdef"
"""Sixteen directories rather than 256, because each changed directory must be synced before a blob
is complete. A million chunks (4 TiB) are only 65,000 names per directory."""

FANS = len(FANOUT)

_OWN = re.compile(r"[0-9]+-[0-9]+")
"""The name of a temporary file: the process id and a number."""


@dataclass(frozen=True, slots=True)
class ChunkHealth:
    """The result of examining one chunk. `bytes` is the number of bytes read. `why` says what is
    wrong; it is empty if the chunk is sound, could not be examined now, or was removed by the
    store.
    """

    bytes: int = 0
    why: str = ""

    @property
    def is_damaged(self) -> bool:
        return bool(self.why)


class Objects:
    """The chunks under `root`. The caller holds the lock on `root`."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._root = root
        self._disk = disk
        self._directory = root / "objects"
        self._temporary = root / "tmp"
        self._serial = itertools.count()
        # Guards the names of the chunks' files, `puts`, `_young` and `_unsettled`.
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self.puts = 0
        """Number of chunks put so far, whether new or not."""
        self._young: dict[Digest, int] = {}
        with disk_errors("opening the store", root):
            self._open()
        # Names from the previous process may not be durable yet; the first `make_durable` syncs
        # them.
        self._unsettled = {self._directory / name for name in FANOUT}

    def _open(self) -> None:
        fans = [self._directory / name for name in FANOUT]
        self._disk.make_directories(*fans, self._temporary)
        for name in self._disk.names(self._temporary):
            if _OWN.fullmatch(name):  # Other names may be directories, or files in use.
                self._disk.remove(self._temporary / name)
        # The previous process may have been killed before its rename of the head was durable. Make
        # it durable before anybody reads the head and relies on it.
        self._disk.sync_directory(self._root)

    def path(self, digest: Digest) -> Path:
        """Return the path of this chunk's file, whether it exists or not."""
        assert is_digest(digest)
        return self._directory / digest[0] / digest[1:]

    def size(self, digest: Digest) -> int | None:
        """Return the length of a chunk in bytes; None if it is not stored."""
        with disk_errors("looking for a chunk", self._root):
            return self._disk.size(self.path(digest))

    def place(self, digest: Digest, data: Buffer) -> bool:
        """Store `data` as the chunk `digest`, which the caller has computed. Return False if the
        chunk already exists.

        Raises StoreFull or StoreError, and leaves the store unchanged.
        """
        path = self.path(digest)
        with self._lock:
            self.puts += 1
            self._young[digest] = self.puts
            if self.size(digest) is not None:
                return False
        self.write_whole(path, data, f"writing chunk {digest[:12]}…")
        with suppress(OSError):
            self._disk.remove(path.with_name(path.name + CORRUPT))
        return True

    def write_whole(self, path: Path, data: Buffer, doing: str) -> None:
        """Make `data` the content of `path`, atomically even if the machine crashes."""
        temporary = self._temporary / f"{os.getpid()}-{next(self._serial)}"
        try:
            with disk_errors(doing, self._root):
                self._disk.write(temporary, memoryview(data).cast("B"))
                self._disk.sync(temporary)
                with self._lock:
                    self._disk.replace(temporary, path)
                    self._unsettled.add(path.parent)
        except BaseException:
            with suppress(OSError):
                self._disk.remove(temporary)
            raise

    def make_durable(self) -> None:
        """Make all names created so far durable."""
        # A second caller must wait for the syncs of the first, because its names must be durable
        # too when `make_durable` returns.
        with self._settling:
            with self._lock:
                directories, self._unsettled = self._unsettled, set()
            try:
                with disk_errors("syncing the store's directories", self._root):
                    for directory in sorted(directories):
                        self._disk.sync_directory(directory)
            except BaseException:
                with self._lock:
                    self._unsettled |= directories
                raise

    def read_chunk(self, digest: Digest) -> bytes:
        """Return the chunk's verified bytes. Raises ChunkMissing, ChunkCorrupt."""
        path, size = self.found(digest)
        with self._reading(digest):
            data = self._disk.read(path, 0, min(size, CHUNK_BYTES_MAX + 1))
        if digest_of(data) != digest:
            raise self._set_aside(digest)
        return data

    def read_into(self, digest: Digest, view: memoryview) -> None:
        """Fill `view` with the verified chunk. Raises ChunkMissing, ChunkCorrupt, ManifestInvalid.

        If a sound chunk does not have the length of `view`, the manifest is wrong.
        """
        path, size = self.found(digest)
        if size != len(view):
            sound = len(self.read_chunk(digest))
            raise ManifestInvalid(f"chunk {digest[:12]}… has {sound} bytes, not {len(view)}")
        with self._reading(digest):
            count = self._disk.read_into(path, view)
        if count != len(view) or digest_of(view) != digest:
            raise self._set_aside(digest)

    def examine(self, digest: Digest) -> ChunkHealth:
        """Read a chunk. Set it aside if it is damaged or the disk can no longer read it.

        A chunk that was set aside earlier counts as damaged here, not only as missing. A removed
        chunk does not count as damaged. Neither does a chunk that cannot be read because the
        machine lacks file descriptors or memory; the next check examines it again.
        """
        try:
            return ChunkHealth(len(self.read_chunk(digest)))
        except ChunkMissing:
            return ChunkHealth(why="it was set aside earlier" if self.is_set_aside(digest) else "")
        except ChunkCorrupt as exc:
            return ChunkHealth(CHUNK_BYTES_MAX, exc.what)
        except StoreError as exc:
            if exc.code in ("FD-LIMIT", "MEM-HOST"):
                return ChunkHealth()
            if exc.code != "STORE-IO":
                raise
            self._set_aside(digest)
            return ChunkHealth(why=exc.what)

    def start(self, digest: Digest, size_max: int) -> bytes:
        """Return the first bytes of a chunk, not verified; empty if it is not stored."""
        with suppress(ChunkMissing), self._reading(digest):
            return self._disk.read(self.path(digest), 0, size_max)
        return b""

    def found(self, digest: Digest) -> tuple[Path, int]:
        """Return the path and the length in bytes of a stored chunk. Raises ChunkMissing."""
        size = self.size(digest)
        if size is None:
            raise _missing(digest)
        return self.path(digest), size

    @contextmanager
    def _reading(self, digest: Digest) -> Iterator[None]:
        """Report a vanished file as a missing chunk: it was collected, or set aside by another
        reader. The disk is not at fault.
        """
        with disk_errors(f"reading chunk {digest[:12]}…", self._root):
            try:
                yield
            except FileNotFoundError as exc:
                raise _missing(digest) from exc

    def _set_aside(self, digest: Digest) -> ChunkCorrupt:
        path = self.path(digest)
        # Ignore an error of the rename, because the damage (reported below) is more serious.
        with suppress(OSError), self._lock:
            self._disk.replace(path, path.with_name(path.name + CORRUPT))
        return ChunkCorrupt(
            f"chunk {digest} no longer matches its digest",
            evidence=[f"set aside as {path}{CORRUPT}"],
            likely="the disk that holds the store is faulty",
            do="nothing: the node fetches it again from a peer when it needs it",
        )

    def is_set_aside(self, digest: Digest) -> bool:
        """Return whether only a damaged copy of this chunk is left."""
        path = self.path(digest)
        with disk_errors("looking for a chunk", self._root):
            damaged = self._disk.size(path.with_name(path.name + CORRUPT)) is not None
        return damaged and self.size(digest) is None

    def young(self) -> tuple[frozenset[Digest], int]:
        """Return the recently put chunks, whether new or not, and the number of puts so far."""
        with self._lock:
            return frozenset(self._young), self.puts

    def grow_up(self, puts: int) -> None:
        """Stop protecting the chunks of the first `puts` puts from garbage collection."""
        with self._lock:
            self._young = {chunk: put for chunk, put in self._young.items() if put > puts}

    def remove_unless(self, reached: set[Digest], digest: Digest) -> int | None:
        """Remove a chunk unless it is in `reached` or was put recently. Return the bytes freed, or
        None if the chunk stays.
        """
        if digest in reached:
            return None
        path, freed = self.path(digest), 0
        with self._lock, disk_errors("removing a chunk", self._root):
            if digest in self._young:
                return None
            for target in (path, path.with_name(path.name + CORRUPT)):
                size = self._disk.size(target)
                if size is not None:
                    self._disk.remove(target)
                    freed += size
        return freed

    def __iter__(self) -> Iterator[Digest]:
        """Yield the digests of all chunks in order, including those set aside."""
        for fan in range(FANS):
            yield from self.names_in(fan)

    def names_in(self, fan: int) -> list[Digest]:
        """Return the digests in one of the `FANS` directories, in order.

        Other files are ignored, such as those that NFS and synchronisation programs leave.
        """
        first = FANOUT[fan]
        with disk_errors("listing the store", self._root):
            names = self._disk.names(self._directory / first)
        digests = {first + name.removesuffix(CORRUPT) for name in names}
        return sorted(Digest(digest) for digest in digests if is_digest(digest))


def _missing(digest: Digest) -> ChunkMissing:
    return ChunkMissing(f"chunk {digest} is not in the store")

"""The interface between the store and the file system. Each write that a crash can interrupt is one
call.

The store must survive crashes, so its tests must be able to crash at each write. All its disk
operations go through `Disk`. `LocalDisk` is the real disk. The tests use `MemoryDisk`, which keeps
durable data apart from data that was written but not synced.

Every implementation guarantees exactly this: data is durable after `sync`, names are durable after
`sync_directory`, and `replace` is atomic. After a crash, anything that was not made durable may be
present or lost, in any combination. This module knows nothing about chunks.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from p2ptrain.errors import StoreError, StoreFull

_AFRESH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class Lock(Protocol):
    """A lock. It is held until `close`, or until the process ends for any reason."""

    def close(self) -> None: ...


class OpenFile(Protocol):
    """An open file. Its operations do not need a new descriptor, which might not be available. The
    object keeps referring to the same file even if another file takes over the file's name.
    """

    def append(self, data: memoryview) -> None:
        """Write `data` at the end. An interrupted write leaves a prefix."""

    def truncate(self, size: int) -> None:
        """Keep the first `size` bytes."""

    def sync(self) -> None:
        """Wait until the bytes would survive a power failure."""

    def close(self) -> None: ...


class Disk(Protocol):
    """The operations that the store needs. All raise OSError, as the system calls do."""

    def make_directories(self, *paths: Path) -> None:
        """Create directories and their parents, durably. Existing directories are not changed."""

    def write(self, path: Path, data: memoryview) -> None:
        """Create or empty the file, and write `data`. An interrupted write leaves a prefix.

        Page-aligned memory of whole pages may bypass the page cache, which saves CPU time and
        page-cache memory.
        """

    def opened(self, path: Path) -> OpenFile:
        """Open an existing file for appending."""

    def truncate(self, path: Path, size: int) -> None:
        """Keep the first `size` bytes of a file."""

    def sync(self, path: Path) -> None:
        """Wait until the file's bytes would survive a power failure."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename atomically, over `target` if it exists."""

    def sync_directory(self, path: Path) -> None:
        """Wait until the names in this directory would survive a power failure."""

    def remove(self, path: Path) -> None:
        """Remove a file. It may reappear after a crash before the next `sync_directory`."""

    def size(self, path: Path) -> int | None:
        """Return the file's length in bytes; None if there is no such file."""

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Return up to `size` bytes starting at `offset`; fewer only at the file's end."""

    def read_into(self, path: Path, view: memoryview) -> int:
        """Fill `view` from the file's start; return the number of bytes read."""

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def lock(self, path: Path) -> Lock | None:
        """Take the exclusive lock of this file; return None if another holder has it."""


class LocalDisk:
    """The file system of this machine."""

    def make_directories(self, *paths: Path) -> None:
        grown = {path.parent for path in paths}
        for path in paths:
            while not path.is_dir():
                grown.add(path.parent)
                path = path.parent
        for path in paths:
            path.mkdir(parents=True, exist_ok=True)
        for parent in sorted(grown):
            self.sync_directory(parent)

    def write(self, path: Path, data: memoryview) -> None:
        if not (_is_pages(data) and _written_around_the_cache(path, data)):
            with _descriptor(path, _AFRESH) as descriptor:
                _write_all(descriptor, data)

    def opened(self, path: Path) -> OpenFile:
        return _LocalFile(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def sync(self, path: Path) -> None:
        with _descriptor(path, os.O_RDONLY) as descriptor:
            os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def sync_directory(self, path: Path) -> None:
        with _descriptor(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            os.fsync(descriptor)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def size(self, path: Path) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def read(self, path: Path, offset: int, size: int) -> bytes:
        pieces = []
        with _descriptor(path, os.O_RDONLY) as descriptor:
            left = min(size, max(0, os.fstat(descriptor).st_size - offset))
            while left and (piece := os.pread(descriptor, left, offset)):
                pieces.append(piece)
                offset, left = offset + len(piece), left - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)  # a single piece is not copied

    def read_into(self, path: Path, view: memoryview) -> int:
        filled = 0
        with _descriptor(path, os.O_RDONLY) as descriptor:
            while filled < len(view) and (count := os.readv(descriptor, [view[filled:]])):
                filled += count
        return filled

    def names(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def lock(self, path: Path) -> Lock | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return _Descriptor(descriptor)  # the kernel unlocks when it is closed, even after SIGKILL


class _Descriptor:
    """A file descriptor, closed by `close` or by the destructor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class _LocalFile(_Descriptor):
    def append(self, data: memoryview) -> None:
        _write_all(self._descriptor, data)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        os.fsync(self._descriptor)


@contextmanager
def _descriptor(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_pages(data: memoryview) -> bool:
    if data.readonly or not data or len(data) % mmap.PAGESIZE:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) % mmap.PAGESIZE == 0


def _written_around_the_cache(path: Path, data: memoryview) -> bool:
    """Write past the page cache. Return False if this file system does not support that."""
    try:
        with _descriptor(path, _AFRESH | os.O_DIRECT) as descriptor:
            _write_all(descriptor, data)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return False
    return True


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@contextmanager
def disk_errors(doing: str, place: Path) -> Iterator[None]:
    """Translate an OSError into a StoreError. This is the only place that does so."""
    try:
        yield
    except OSError as exc:
        raise _translated(exc, doing, place) from exc


def _translated(exc: OSError, doing: str, place: Path) -> StoreError:
    evidence = [f"{doing}: {os.strerror(exc.errno or errno.EIO)}", f"store {place}"]
    if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(
            f"the disk was full while {doing}",
            evidence=evidence,
            likely="the disk, a quota or a file-size limit is exhausted; no stored data was lost",
            do=f"free some space under {place}, then start the node or the command again",
        )
    if exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreError(
            f"the store could not be accessed while {doing}",
            code="STORE-READONLY",
            evidence=evidence,
            likely="the disk is mounted read-only, or the files belong to another user",
            do=f"check who owns {place} and how its disk is mounted",
        )
    if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return StoreError(
            f"this machine ran out of memory or file descriptors while {doing}",
            code="MEM-HOST" if exc.errno == errno.ENOMEM else "FD-LIMIT",
            evidence=evidence,
            likely="a limit set by the shell, the service manager or the container",
            do="raise the limit (ulimit -n 4096), or close other programs; the disk is fine",
        )
    return StoreError(
        f"the disk failed while {doing}",
        code="STORE-IO",
        evidence=evidence,
        likely="the disk or the file system that holds the store is faulty",
        do=f"check the kernel log, and move {place} to a working disk",
    )

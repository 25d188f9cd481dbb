"""A disk in memory that can fail at any write, for tests and simulations.

The disk keeps durable data apart from data that was written but not synced, and counts the
operations that change something. At a chosen operation it fails: with a power cut, after which
every operation fails until `reboot`, or with a system error such as ENOSPC. An interrupted write
leaves a prefix.

A power cut is the worst crash that POSIX permits. Each name that was not made durable, and each
file that was not synced, may survive or be lost, in any combination; unsynced parts may be zeros.
Directories themselves are durable immediately, as `make_directories` guarantees.
"""

from __future__ import annotations

import errno
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from p2ptrain.store.disk import OpenFile

_PAGE_BYTES = 512


class PowerCut(BaseException):
    """The machine is off. Not an Exception, so that cleanup code cannot catch it."""


@dataclass(slots=True)
class _File:
    content: bytes = b""
    durable: bytes = b""


_Tree = dict[Path, dict[str, _File]]


@dataclass(slots=True)
class _Opened:
    """An open file. `path` is the name that the file had when it was opened."""

    disk: MemoryDisk
    path: Path
    file: _File

    def append(self, data: memoryview) -> None:
        before = self.file.content
        half = before + bytes(data[: len(data) // 2])
        with self.disk._write(f"append {self.path}", partial(setattr, self.file, "content", half)):
            self.file.content = before + bytes(data)

    def truncate(self, size: int) -> None:
        with self.disk._write(f"truncate {self.path}"):
            self.file.content = self.file.content[:size]

    def sync(self) -> None:
        with self.disk._write(f"sync {self.path}"):
            self.file.durable = self.file.content

    def close(self) -> None:
        pass


@dataclass(slots=True)
class MemoryDisk:
    """A `Disk` whose write number `fail_at` fails, counted from 1. If `fail_at` is 0, no write
    fails.

    `failure` is an errno, or None for a power cut. With `forever` all later writes fail too.
    `writes` describes the writes so far.
    """

    fail_at: int = 0
    failure: int | None = None
    forever: bool = False
    writes: list[str] = field(default_factory=list)
    _names: _Tree = field(default_factory=dict)
    _durable_names: _Tree = field(default_factory=dict)
    _locked: set[Path] = field(default_factory=set)
    _is_off: bool = False
    _turn: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def with_files_of(cls, other: MemoryDisk) -> Self:
        """Return a disk with the files of `other`. A change on one of the disks is a change on
        both."""
        return cls(_names=other._names, _durable_names=other._durable_names)

    def reboot(self, rng: random.Random | None) -> MemoryDisk:
        """Return the disk as the next process finds it. If `rng` is None, only the process was
        killed, and everything that was written is still there.
        """
        if rng is None:
            # Both trees are copied in one call, so that a file in both remains one file.
            names, durable_names = deepcopy((self._names, self._durable_names))
            return MemoryDisk(_names=names, _durable_names=durable_names)
        after = MemoryDisk()
        for directory, written in self._names.items():
            durable = self._durable_names[directory]
            left = after._names[directory] = {}
            for name in sorted(written.keys() | durable.keys()):
                file = rng.choice([written.get(name), durable.get(name)])
                if file is not None:
                    content = _torn(file, rng)
                    left[name] = _File(content, content)
            after._durable_names[directory] = dict(left)
        return after

    def damage(self, path: Path, change: Callable[[bytes], bytes]) -> None:
        """Simulate disk corruption: silently change a file's durable bytes."""
        file = self._file(path)
        file.content = file.durable = change(file.content)

    # The methods of `Disk`.

    def make_directories(self, *paths: Path) -> None:
        self._check_on()
        for path in paths:
            self._names.setdefault(path, {})
            self._durable_names.setdefault(path, {})

    def write(self, path: Path, data: memoryview) -> None:
        self._check_on()
        file = self._names[path.parent].setdefault(path.name, _File())
        file.content = b""
        half = bytes(data[: len(data) // 2])
        with self._write(f"write {path}", partial(setattr, file, "content", half)):
            file.content = bytes(data)

    def opened(self, path: Path) -> OpenFile:
        return _Opened(self, path, self._file(path))

    def truncate(self, path: Path, size: int) -> None:
        self.opened(path).truncate(size)

    def sync(self, path: Path) -> None:
        self.opened(path).sync()

    def replace(self, source: Path, target: Path) -> None:
        file = self._file(source)
        with self._write(f"replace {target}"):
            del self._names[source.parent][source.name]
            self._names[target.parent][target.name] = file

    def sync_directory(self, path: Path) -> None:
        with self._write(f"sync directory {path}"):
            self._durable_names[path] = dict(self._names[path])

    def remove(self, path: Path) -> None:
        self._file(path)
        with self._write(f"remove {path}"):
            del self._names[path.parent][path.name]

    def size(self, path: Path) -> int | None:
        file = self._names.get(path.parent, {}).get(path.name)
        return None if file is None else len(file.content)

    def read(self, path: Path, offset: int, size: int) -> bytes:
        return self._file(path).content[offset : offset + size]

    def read_into(self, path: Path, view: memoryview) -> int:
        content = self._file(path).content[: len(view)]
        view[: len(content)] = content
        return len(content)

    def names(self, path: Path) -> list[str]:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return sorted(self._names[path])

    def lock(self, path: Path) -> ExitStack | None:
        if path in self._locked:
            return None
        self._locked.add(path)
        held = ExitStack()
        held.callback(self._locked.discard, path)
        return held

    def _file(self, path: Path) -> _File:
        self._check_on()
        try:
            return self._names[path.parent][path.name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None

    def _check_on(self) -> None:
        if self._is_off:
            raise PowerCut

    @contextmanager
    def _write(self, what: str, partly: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Count a write, and perform it unless the disk should fail here."""
        with self._turn:
            self._check_on()
            self.writes.append(what)
            number = len(self.writes)
            if not (number == self.fail_at or (self.forever and 0 < self.fail_at <= number)):
                yield
                return
            partly()
            if self.failure is None:
                self._is_off = True
                raise PowerCut(what)
            raise OSError(self.failure, "injected by the test", what)


def _common_start(one: bytes, other: bytes) -> int:
    if other.startswith(one):
        return len(one)  # the usual case, an append
    equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in equal)


def _torn(file: _File, rng: random.Random) -> bytes:
    """Return what survives of a file: each page is synced, written, or zeros."""
    if file.content == file.durable:
        return file.durable
    lengths = sorted([len(file.durable), len(file.content)])
    longest = rng.choice([*lengths, rng.randint(*lengths)])
    same = _common_start(file.durable, file.content)
    pages = []
    for start in range(0, longest, _PAGE_BYTES):
        stop = min(start + _PAGE_BYTES, longest)
        zeros = file.durable[start : min(stop, same)].ljust(stop - start, b"\0")
        synced = file.durable[start:stop].ljust(stop - start, b"\0")
        written = file.content[start:stop].ljust(stop - start, b"\0")
        unsynced = synced != written
        pages.append(rng.choice([synced, written, zeros]) if unsynced else written)
    return b"".join(pages)

"""Create a folder atomically, and remove what killed writers left behind.

The folder is written next to its final path under a hidden name, then synced and renamed. The
writing process holds a lock on the hidden folder, which the kernel releases when the process ends
for any reason. A killed process leaves its hidden folder, perhaps of gigabytes. The next process
finds this folder unlocked and removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Yield a new folder to write in. If the `with` block succeeds, the new folder replaces
    `target`. If the block raises, the new folder is removed and `target` stays as it was."""
    partial, replaced = _hidden(target, os.getpid())
    partial.mkdir()
    try:
        with _descriptor(partial) as descriptor:
            _lock(descriptor)
            yield partial
            for path in partial.iterdir():
                _sync(path)
            os.fsync(descriptor)
            if target.exists():
                target.rename(replaced)
            partial.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def clear_away(target: Path) -> list[Path]:
    """Remove the folders that killed writers of `target` have left, and return their paths.

    If a killed writer had just moved the old `target` away, the old folder is moved back instead.
    """
    removed = []
    for process in _writers(target):
        partial, replaced = _hidden(target, process)
        if partial.exists():
            with _descriptor(partial) as descriptor:
                if not _lock(descriptor):
                    continue
        if partial.exists() and replaced.exists() and not os.path.lexists(target):
            replaced.rename(target)
        for left in (partial, replaced):
            if left.exists():
                shutil.rmtree(left, ignore_errors=True)
                removed.append(left)
    return removed


def _hidden(target: Path, process: int) -> tuple[Path, Path]:
    """Return the path to which `process` writes, and the path to which it moves the old folder."""
    names = (f".{target.name}.{kind}-{process}" for kind in ("partial", "replaced"))
    partial, replaced = map(target.with_name, names)
    return partial, replaced


def _writers(target: Path) -> set[int]:
    """Return the ids of the processes that have left a hidden folder or are writing one now."""
    if not target.parent.is_dir():
        return set()
    prefixes = (f".{target.name}.partial-", f".{target.name}.replaced-")
    ends = (
        name.removeprefix(prefix)
        for name in os.listdir(target.parent)
        for prefix in prefixes
        if name.startswith(prefix)
    )
    return {int(end) for end in ends if end.isascii() and end.isdigit()}


def _lock(descriptor: int) -> bool:
    """Lock a folder. Return False if another process has the lock, or if the file system does not
    lock folders (NFS). `clear_away` keeps a folder that it cannot lock, since the writer may be
    alive."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync(path: Path) -> None:
    with _descriptor(path) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

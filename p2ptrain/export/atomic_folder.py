"""A folder that takes its place whole or not at all, and what is left of those that never did.

It is written beside its place under a hidden name, held by a lock that the kernel lets go of
however its writer ends, then synced and renamed. A writer that was killed leaves the hidden folder,
gigabytes perhaps: the next one to write there finds it unlocked, and clears it away. It does not
know what is in the folder.
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
    """A folder to write in that takes `target`'s name, with what was there before removed, if the
    block ends well; and is removed if it does not.
    """
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
    """Remove what those have left who were killed while they wrote `target`; returns what it was.

    An export that one of them had just moved out of the way is put back, and not removed.
    """
    removed = []
    for process in _writers(target):
        partial, replaced = _hidden(target, process)
        if partial.exists() and _is_locked(partial):
            continue
        if partial.exists() and replaced.exists() and not os.path.lexists(target):
            replaced.rename(target)
        for left in (partial, replaced):
            if left.exists():
                shutil.rmtree(left, ignore_errors=True)
                removed.append(left)
    return removed


def _hidden(target: Path, process: int) -> tuple[Path, Path]:
    """Where `process` writes, and where it moves what is in the way."""
    return (
        target.with_name(f".{target.name}.partial-{process}"),
        target.with_name(f".{target.name}.replaced-{process}"),
    )


def _writers(target: Path) -> set[int]:
    """Processes that have left a hidden folder, or are writing one."""
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


def _is_locked(folder: Path) -> bool:
    with _descriptor(folder) as descriptor:
        return not _lock(descriptor)


def _lock(descriptor: int) -> bool:
    """False where another has the lock, and where folders cannot be locked (NFS): what is left
    there stays, since its writer may be alive.
    """
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

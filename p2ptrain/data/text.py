"""Training text that every machine already has: the sources of Python's standard library."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_FILE_BYTES_MAX = 2**20


def standard_library_text(limit_bytes: int) -> list[str]:
    """Return one document per source file, sorted by path, up to `limit_bytes` in total.

    There are about 12 MB. Tests are left out because they are repetitive, and installed packages
    because they differ between machines. Files that are not UTF-8 or exceed 1 MiB are skipped.
    """
    documents: list[str] = []
    remaining = limit_bytes
    for path in _sources(Path(sysconfig.get_path("stdlib"))):
        text = _read_text(path)
        size = len(text.encode())
        if 0 < size <= remaining:
            documents.append(text)
            remaining -= size
    return documents


def _sources(root: Path) -> Iterator[Path]:
    found: list[Path] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    yield from sorted(found)


def _read_text(path: Path) -> str:
    """Return the file's text, or "" if it is not UTF-8 or too large."""
    try:
        data = path.read_bytes()
        return data.decode() if len(data) <= _FILE_BYTES_MAX else ""
    except (OSError, UnicodeDecodeError):
        return ""

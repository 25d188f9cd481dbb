"""The journal: one JSON object per line, for everything that a node did and why.

It answers questions afterwards ("why was I left out of step 412?") and feeds programs that draw
charts. So a line has the name of its event, both clocks and plain fields. `time` is Unix seconds,
to compare machines by eye; `monotonic_s` is for measuring. The journal is bounded: at `bytes_max`
the file is renamed to `.1` and replaces the earlier one. It must never harm the node: a full disk
costs lines, which are counted, and never the node. It must not harm terminals either: unprintable
characters in a peer's words are written as JSON escapes.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

BYTES_MAX = 32 * 2**20
"""About 200,000 lines, which are days of training. The disk holds at most twice this."""

TEXT_CHARACTERS_MAX = 4000
"""Longer fields are cut. A trainer's stderr tail fits; an endless message does not."""


class Journal:
    """A journal at `path`, which is appended to. Any thread may write to it."""

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int = BYTES_MAX,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.lost = 0
        """Number of lines that could not be written."""
        self._bytes_max = bytes_max
        self._wall = wall
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def write(self, event: str, **fields: object) -> None:
        """Append one line. Values that JSON cannot represent become text. Raises nothing."""
        record = {
            "event": event,
            "time": round(self._wall(), 3),
            "monotonic_s": round(self._monotonic(), 4),
            **{name: _plain(value) for name, value in fields.items()},
        }
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        with self._lock:
            try:
                self._append(_printable(line).encode() + b"\n")
            except OSError:
                self.lost += 1
                self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self._file = _open_to_append(self.path)
            _end_torn_line(self._file)
        if self._file.tell() + len(line) > self._bytes_max and self._file.tell():
            self._file.close()
            self._file = None
            os.replace(self.path, put_aside(self.path))
            self._file = _open_to_append(self.path)
        self._file.write(line)


def _open_to_append(path: Path) -> IO[bytes]:
    """Open the file for its owner alone, since it names peers and addresses. Refuse a symbolic
    link, which would let another user choose which of our files grows.

    Raises OSError.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # Earlier versions made it readable by everybody.
        return os.fdopen(descriptor, "a+b", buffering=0)
    except OSError:
        os.close(descriptor)
        raise


def put_aside(path: Path) -> Path:
    """Return the path of the older half of the journal at `path`, which may not exist."""
    return path.with_name(path.name + ".1")


def read_journal(path: Path) -> Iterator[dict[str, object]]:
    """Yield the records of a journal, oldest first, including the older half.

    Lines that a crash cut short, or that are not records, are skipped.
    """
    for part in (put_aside(path), path):
        if not part.exists():
            continue
        with part.open("rb") as file:
            for line in file:
                if record := _record(line):
                    yield record


def _record(line: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "event" in value else None


def _end_torn_line(file: IO[bytes]) -> None:
    """End the last line if a crash cut it short, so that the next record starts a line."""
    size = file.seek(0, os.SEEK_END)
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        file.write(b"\n")


def _printable(line: str) -> str:
    """Escape unprintable characters. JSON escapes only the oldest control characters, but later
    ones control terminals, too.
    """
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def _plain(value: object) -> object:
    """Return `value` in a form that JSON can represent: bounded text, no NaN, no types of ours."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return value[:TEXT_CHARACTERS_MAX]
        case bytes():
            return value[: TEXT_CHARACTERS_MAX // 2].hex()
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case _:
            return str(value)[:TEXT_CHARACTERS_MAX]

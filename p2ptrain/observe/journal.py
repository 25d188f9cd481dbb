"""The journal: what a node did and why, as one JSON object per line.

People read the journal to answer questions such as "why was I left out of step 412?", and programs
read it to draw charts. So a line has the name of its event, two clocks and plain fields. `time` is
in Unix seconds, to compare the journals of several machines; `monotonic_s` is for measuring. The
journal is bounded: at `bytes_max` the file is renamed to `.1`, which replaces an earlier `.1`. The
journal must not harm the node: if the disk is full, lines are lost and counted, but the node
continues. It must not harm terminals either: unprintable characters in a peer's text are written as
JSON escapes.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

BYTES_MAX = 32 * 2**20
"""Maximum size of a file: about 200,000 lines, or days of training. There are at most two files."""

TAIL_BYTES_MAX = 64 * 2**10
"""Number of bytes at the end of the journal that tell how the last node ended: far more than a
record, and little enough to be read at once."""

TEXT_CHARACTERS_MAX = 4000
"""Maximum length of a field in characters: enough for the end of a trainer's stderr. Longer fields
are truncated.
"""


Follower = Callable[[Mapping[str, object]], None]
"""Called with each record, in the thread that wrote it. It must be quick and not raise."""


class Journal:
    """A journal in the file at `path`. Any thread may write to it."""

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
        self._followers: tuple[Follower, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def write(self, event: str, **fields: object) -> None:
        """Append one line. Values that JSON cannot represent become text. Never raises an error."""
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
        for follow in self._followers:
            follow(record)

    @contextmanager
    def followed(self, follower: Follower) -> Iterator[None]:
        """Also pass all records to `follower` in the `with` block, even if the disk is full."""
        self._followers = (*self._followers, follower)
        try:
            yield
        finally:
            self._followers = tuple(each for each in self._followers if each is not follower)

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
    """Open the file so that only its owner can read it, since it names peers and addresses. Refuse
    a symbolic link, with which another user could choose the file to append to. Raises OSError.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # Earlier versions made the file readable by everybody.
        return os.fdopen(descriptor, "a+b", buffering=0)
    except OSError:
        os.close(descriptor)
        raise


def put_aside(path: Path) -> Path:
    """Return the path of the older part of the journal at `path`. There may be no file there."""
    return path.with_name(path.name + ".1")


def read_journal(path: Path) -> Iterator[dict[str, object]]:
    """Yield the records of a journal, including its older part, oldest first. Skip lines that a
    crash truncated or that are not records.
    """
    for part in (put_aside(path), path):
        if not part.exists():
            continue
        with part.open("rb") as file:
            for line in file:
                if record := _record(line):
                    yield record


def newest_records(path: Path, *, bytes_max: int = TAIL_BYTES_MAX) -> list[dict[str, object]]:
    """Return the records in the last `bytes_max` bytes of the journal at `path`, oldest first. This
    is fast even if the journal is large."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - bytes_max)
            file.seek(start)
            lines = file.read(bytes_max).split(b"\n")
    except OSError:
        return []
    found = (_record(line) for line in lines[1 if start else 0 :])
    return [record for record in found if record]


def _record(line: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "event" in value else None


def _end_torn_line(file: IO[bytes]) -> None:
    """If a crash truncated the last line, end it, so that the next record starts on a new line."""
    size = file.seek(0, os.SEEK_END)
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        file.write(b"\n")


def _printable(line: str) -> str:
    """Escape unprintable characters. `json.dumps` escapes only the ASCII control characters, but
    other characters control terminals too.
    """
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def _plain(value: object) -> object:
    """Convert `value` to a form that JSON can represent: bounded text, no NaN, only plain types."""
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

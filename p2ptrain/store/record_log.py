"""An append-only file of records that must survive a crash, such as the ledger's entries and votes.

Each append is one frame: a header and a body. The header holds a magic number, the body's length,
the number of bytes of the file that were durable when the frame was written, and a checksum. The
body holds the records, each preceded by its length.

A crash can damage only the tail that was never synced. Damage before that means that the disk is
faulty. The field `durable` tells the two apart. If an intact frame after the damage says that the
damaged bytes had been synced, then votes or entries that other peers rely on are lost, and opening
the log raises. Otherwise the tail is cut off, and `recovered` reports it. One case is ambiguous:
damage to the very last synced frame, with nothing after it, looks like an unsynced tail.

The checksums start from a random nonce that is chosen when the file is created. A record may
contain bytes that a peer chose; because of the nonce, these bytes cannot be mistaken for a frame.

The file stays open from the first append on, or earlier through `keep_open`, so that no append
fails for lack of descriptors. Peers can make descriptors scarce, and a node that cannot write its
vote has to end.

The log does not know what its records mean.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from p2ptrain.errors import LocalProtocolError, StoreError
from p2ptrain.store.disk import Disk, LocalDisk, OpenFile, disk_errors

_FILE_MAGIC = b"p2plog1\n"
_NONCE_BYTES = 8
_FILE_HEADER = struct.Struct("<8s8sI")  # magic, nonce, crc32 of both
_FILE_HEADER_BYTES = _FILE_HEADER.size
_FRAME_MAGIC = b"\xf7REC"
_HEADER = struct.Struct("<4sIQI")  # magic, body bytes, durable bytes, crc32 of the rest
_LENGTH = struct.Struct("<I")

FRAME_BYTES = 1 << 20
"""Approximate bytes of each frame when a log is rewritten."""

BODY_BYTES_MAX = 16 * 2**20
"""Maximum bytes of a body. A page of certified entries has at most 256 KiB, so a body near this
limit is our own bug."""


class LogCorrupt(StoreError):
    """Durable records are damaged. The first `records` records are intact."""

    default_code = "LOG-CORRUPT"

    def __init__(self, path: Path, offset: int, records: int) -> None:
        super().__init__(
            f"the log {path.name} is damaged at byte {offset}, in a part that had been "
            "synced to disk",
            evidence=[f"file {path}", f"intact records before it: {records}"],
            likely="the disk is faulty, or another program wrote into the file",
            do="move the node's home away and join again: other peers have the ledger",
        )
        self.records = records


class RecordLog:
    """The records in the order in which they were appended, including those from before a crash.

    `torn_bytes` is the length of the damaged tail that was cut off on opening; `recovered` is a
    message about it. Use from one thread at a time. After a failed append the log is cut back to
    its earlier length. If that fails too, the log refuses further appends until it is opened again.

    Raises LogCorrupt on opening, if durable records are damaged.
    """

    def __init__(self, path: Path, *, disk: Disk | None = None) -> None:
        self.path = path
        self.recovered = ""
        self.torn_bytes = 0
        self._disk = disk or LocalDisk()
        self._file: OpenFile | None = None
        self.takes_more = True
        """Whether records can be appended. If not, open the log again to find out what it
        contains.
        """
        self._seed = 0
        self._size = self._durable = 0
        with disk_errors("opening a log", path):
            size = self._disk.size(path)
        if size is None:
            with disk_errors("creating a log", path):
                self._disk.make_directories(path.parent)
            self.rewrite(())
        else:
            with disk_errors("opening a log", path):
                self._open(size)

    def append(self, records: Iterable[bytes], *, durable: bool = True) -> None:
        """Append records. After a crash, either all or none of them exist. With `durable`, they are
        durable on return.

        Raises StoreFull or StoreError; the records are then not in the log.
        """
        if not self.takes_more:
            raise StoreError(
                f"the log {self.path.name} was closed after an earlier disk error",
                code="LOG-CLOSED",
                likely="the disk that holds the store is faulty",
                do="check the kernel log, then restart the node",
            )
        frame, file = _frame(records, self._durable, self._seed), self.keep_open()
        try:
            with disk_errors(f"appending to {self.path.name}", self.path):
                if frame:
                    file.append(memoryview(frame))
                if durable:
                    file.sync()
        except StoreError:
            self._cut_back()
            raise
        self._size += len(frame)
        if durable:
            self._durable = self._size

    def rewrite(self, records: Iterable[bytes], frame_bytes: int | None = None) -> None:
        """Replace the whole log with these records, atomically and durably, for compaction.

        The records are read one at a time and written in frames of about `frame_bytes`, by default
        `FRAME_BYTES`.

        Raises StoreFull or StoreError. The log is then unchanged; or, if a crash could undo the
        rename, it refuses further appends.
        """
        fresh = self.path.with_name(self.path.name + ".new")
        nonce = os.urandom(_NONCE_BYTES)
        header = _FILE_HEADER.pack(_FILE_MAGIC, nonce, zlib.crc32(_FILE_MAGIC + nonce))
        seed, size = zlib.crc32(nonce), len(header)
        with disk_errors(f"rewriting {self.path.name}", self.path):
            self._disk.write(fresh, memoryview(header))
            file = self._disk.opened(fresh)
            for batch in _batches(records, frame_bytes or FRAME_BYTES):
                # Each frame says that all bytes before it are durable. This is true when the file
                # gets its name, because the file is synced before it is renamed.
                frame = _frame(batch, size, seed)
                file.append(memoryview(frame))
                size += len(frame)
            file.sync()
            self._disk.replace(fresh, self.path)
            self.close()
            self._file, self.takes_more = file, False
            self._size = self._durable = size
            self._seed = seed
            self._disk.sync_directory(self.path.parent)
            self.takes_more = True

    def keep_open(self) -> OpenFile:
        """Keep the file open from now on. Raises StoreError."""
        if self._file is None:
            with disk_errors(f"opening {self.path.name}", self.path):
                self._file = self._disk.opened(self.path)
        return self._file

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __iter__(self) -> Iterator[bytes]:
        """Yield the records, reading the file as they are requested."""
        offset = _FILE_HEADER_BYTES
        while offset < self._size:
            with disk_errors(f"reading {self.path.name}", self.path):
                found = self._frame_at(offset)
            if found is None:
                raise self._corrupt(offset)
            body, _ = found
            yield from _records(body)
            offset += _HEADER.size + len(body)

    def _cut_back(self) -> None:
        """Undo a failed append. If that fails, refuse appends, because the log's end is unknown."""
        try:
            file = self.keep_open()
            file.truncate(self._size)
            file.sync()
            self._durable = self._size
        except OSError:
            self.takes_more = False

    def _open(self, size: int) -> None:
        header = self._disk.read(self.path, 0, _FILE_HEADER_BYTES)
        # `rewrite` creates the log by renaming a complete file, so a crash cannot make it shorter.
        if len(header) < _FILE_HEADER_BYTES:
            raise LogCorrupt(self.path, 0, 0)
        magic, nonce, checksum = _FILE_HEADER.unpack(header)
        if magic != _FILE_MAGIC or checksum != zlib.crc32(magic + nonce):
            raise LogCorrupt(self.path, 0, 0)
        self._seed = zlib.crc32(nonce)
        self._size = max((end for end, _ in self._sound_frames(size)), default=_FILE_HEADER_BYTES)
        if self._size < size:
            self._check_never_durable(self._size, size)
            self._disk.truncate(self.path, self._size)
            self.torn_bytes = size - self._size
            self.recovered = (
                f"removed {self.torn_bytes} bytes of an incomplete record from the end of "
                f"{self.path.name}"
            )
        # From now on, other peers rely on what the previous process wrote, so sync it.
        self._disk.sync(self.path)
        self._disk.sync_directory(self.path.parent)
        self._durable = self._size

    def _sound_frames(self, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the end and the body of each frame before `end`, up to the first damaged frame."""
        offset = _FILE_HEADER_BYTES
        while offset < end and (found := self._frame_at(offset)) is not None:
            offset += _HEADER.size + len(found[0])
            yield offset, found[0]

    def _check_never_durable(self, damaged: int, size: int) -> None:
        """Raise if an intact frame after the damage says that the damaged bytes were durable."""
        tail = self._disk.read(self.path, damaged, size - damaged)
        start = tail.find(_FRAME_MAGIC)
        while start >= 0:
            found = self._frame_at(damaged + start)
            if found is not None and found[1] > damaged:
                raise self._corrupt(damaged)
            start = tail.find(_FRAME_MAGIC, start + 1)

    def _corrupt(self, damaged: int) -> LogCorrupt:
        count = sum(1 for _, body in self._sound_frames(damaged) for _ in _records(body))
        return LogCorrupt(self.path, damaged, count)

    def _frame_at(self, offset: int) -> tuple[bytes, int] | None:
        """Return the body and `durable` of the frame at `offset`; None if it is damaged."""
        header = self._disk.read(self.path, offset, _HEADER.size)
        if len(header) < _HEADER.size:
            return None
        magic, length, durable, checksum = _HEADER.unpack(header)
        if magic != _FRAME_MAGIC or length > BODY_BYTES_MAX:
            return None
        body = self._disk.read(self.path, offset + _HEADER.size, length)
        sound = len(body) == length and checksum == _checksum(body, durable, self._seed)
        return (body, durable) if sound else None


def _batches(records: Iterable[bytes], frame_bytes: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for record in records:
        if batch and size + len(record) > frame_bytes:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record)
    if batch:
        yield batch


def _frame(records: Iterable[bytes], durable: int, seed: int) -> bytes:
    body = b"".join(_LENGTH.pack(len(record)) + record for record in records)
    if len(body) > BODY_BYTES_MAX:
        raise LocalProtocolError(
            f"an append of {len(body)} bytes exceeds the limit of {BODY_BYTES_MAX}"
        )
    checksum = _checksum(body, durable, seed)
    return _HEADER.pack(_FRAME_MAGIC, len(body), durable, checksum) + body if body else b""


def _checksum(body: bytes, durable: int, seed: int) -> int:
    return zlib.crc32(body, zlib.crc32(_HEADER.pack(_FRAME_MAGIC, len(body), durable, 0), seed))


def _records(body: bytes) -> Iterator[bytes]:
    offset = 0
    while offset < len(body):
        (length,) = _LENGTH.unpack_from(body, offset)
        offset += _LENGTH.size + length
        yield body[offset - length : offset]

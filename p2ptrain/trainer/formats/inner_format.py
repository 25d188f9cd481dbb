"""The file format of an inner optimizer's state. Nodes and tools can use it without torch.

Like θ, the state is in the run's canonical layout: 8 bytes per parameter, whatever the number of
ranks.

    bytes    field
    4096     magic, length and canonical msgpack of the header: outer step, AdamW's count of steps,
             inner steps since the optimizer last began with an empty state, elements, digest of
             the layout, CRC-32 of the vectors; then zeros
    4 · n    first vector: AdamW's mean of the gradients, or Muon's momentum
    4 · n    second vector: AdamW's mean of their squares; zeros for Muon

A file is named by its outer step. The checksum detects a file that a crash cut short. If the
vectors come from another peer, `inner_bounds` checks them before the header is written.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.state.layout import Layout

MAGIC = b"p2pinner"
HEADER_BYTES = 4096
FLOAT_BYTES = 4
PIECE_BYTES = 2**26
WARM = 2**32
"""Value of `InnerStateHeader.warmed` for a state that does not need a warm-up: more inner steps
than any warm-up has."""
_LENGTH = struct.Struct("<8sI")


@dataclass(frozen=True, slots=True)
class InnerStateHeader:
    step: int
    count: int
    warmed: int
    numel: int
    layout: str
    crc: int


def vector_bytes(layout: Layout) -> int:
    return layout.numel * FLOAT_BYTES


def path_of(folder: Path, step: int) -> Path:
    return folder / f"{step:012d}"


def steps_in(folder: Path) -> list[int]:
    """Return the outer steps that have a state file in `folder`, complete or not, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal())


def newest(folder: Path, layout: Layout, step_max: int) -> InnerStateHeader | None:
    """Return the header of the newest complete state whose outer step is at most `step_max`."""
    for step in reversed([step for step in steps_in(folder) if step <= step_max]):
        try:
            with path_of(folder, step).open("rb", buffering=0) as file:
                header = read_header(file.fileno(), layout)
                if header.step == step and crc_of(file.fileno()) == header.crc:
                    return header
        except (OSError, RemoteProtocolError):
            continue
    return None


def read_header(fd: int, layout: Layout) -> InnerStateHeader:
    """Return the file's header. The vectors are not read.

    Raises:
        RemoteProtocolError: the file is not a state for this layout, or was cut short.
        OSError.
    """
    head = os.pread(fd, HEADER_BYTES, 0)
    if len(head) < HEADER_BYTES:
        raise RemoteProtocolError("it was cut short")
    magic, length = _LENGTH.unpack_from(head)
    body = unpack(head[_LENGTH.size : _LENGTH.size + length], bytes_max=HEADER_BYTES)
    told = fields(body, step=int, count=int, warmed=int, numel=int, layout=str, crc=int)
    header = InnerStateHeader(**told)  # type: ignore[arg-type]
    whole = os.fstat(fd).st_size == HEADER_BYTES + 2 * vector_bytes(layout)
    fits = (header.numel, header.layout) == (layout.numel, layout.digest)
    counts = header.count > 0 and header.warmed >= 0
    if magic != MAGIC or not (counts and whole and fits):
        raise RemoteProtocolError("it is not a state of this model's inner optimizer")
    return header


def write_header(fd: int, layout: Layout, step: int, count: int, warmed: int = WARM) -> None:
    """Write the header of a file whose vectors are complete. Raises OSError."""
    header = InnerStateHeader(step, count, warmed, layout.numel, str(layout.digest), crc_of(fd))
    body = pack(asdict(header))
    os.pwrite(fd, _LENGTH.pack(MAGIC, len(body)) + body, 0)


def reserve(path: Path, layout: Layout) -> None:
    """Create the file at its full size, so that later writes cannot fail on a full disk.

    Raises OSError: the disk has too little space. The file is then removed to free its space.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, HEADER_BYTES + 2 * vector_bytes(layout))
    except OSError:
        path.unlink(missing_ok=True)
        raise


def publish(new: Path, folder: Path, step: int) -> None:
    """Rename the complete file `new` to its final name, and remove the states of other steps.
    Raises OSError."""
    older = steps_in(folder)
    new.replace(path_of(folder, step))
    for each in older:
        if each != step:
            path_of(folder, each).unlink(missing_ok=True)


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`. Raises OSError."""
    while data:
        written = os.pwrite(fd, data[:PIECE_BYTES], offset)
        data, offset = data[written:], offset + written


def pieces_of(fd: int) -> Iterator[bytes]:
    """Yield the bytes after the header, in pieces. Raises OSError."""
    offset = HEADER_BYTES
    while piece := os.pread(fd, PIECE_BYTES, offset):
        yield piece
        offset += len(piece)


def crc_of(fd: int) -> int:
    """Return the CRC-32 of the bytes after the header. Raises OSError."""
    crc = 0
    for piece in pieces_of(fd):
        crc = zlib.crc32(piece, crc)
    return crc

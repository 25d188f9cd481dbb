"""One data block: the sequences of exactly one inner step, as a file with its own checksum.

    offset  bytes  field
    0       8      magic "p2pblk\\0" and the version, 1
    8       4      bytes per token: 2 or 4 (vocabularies over 65,536 need four)
    12      4      sequences
    16      4      tokens per sequence: the model's sequence length + 1, for the last target
    20      4      CRC-32 of the tokens
    24      …      tokens, little-endian, row-major

A node checks a block's digest when it fetches the block. The header's checksum detects later
damage, caused by a faulty or full disk. The shape in the header detects blocks of a different run.
A damaged block is refused completely: no part of it is trained on.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2ptrain.errors import ChunkCorrupt, ChunkMissing

MAGIC = b"p2pblk\x00\x01"
_HEADER = struct.Struct("<8s4I")
HEADER_BYTES = _HEADER.size
BLOCK_BYTES_MAX = 2**26
"""2,048 sequences of 8,192 four-byte tokens: one peer's inner step does not need a larger batch."""

Tokens = npt.NDArray[np.integer[Any]]


def encoded_bytes(vocab: int, sequences: int, sequence: int) -> int:
    """Return the length of a block's file: 2 bytes per token, or 4 for a large vocabulary."""
    return HEADER_BYTES + token_bytes(vocab) * sequences * (sequence + 1)


def token_bytes(vocab: int) -> int:
    return 2 if vocab <= 2**16 else 4


def encode_block(rows: Tokens, vocab: int) -> bytes:
    """Return the file content for a block: tokens shaped [sequences, sequence + 1], below
    `vocab`.
    """
    assert rows.ndim == 2, f"a block of shape {rows.shape}"
    assert rows.size > 0, "a block without tokens"
    assert int(rows.min()) >= 0, "a negative token"
    assert int(rows.max()) < vocab, "a token outside the vocabulary"
    width = token_bytes(vocab)
    body = np.ascontiguousarray(rows, dtype=f"<u{width}").tobytes()
    header = _HEADER.pack(MAGIC, width, rows.shape[0], rows.shape[1], zlib.crc32(body))
    assert len(header) + len(body) <= BLOCK_BYTES_MAX, "a block over the limit"
    return header + body


def decode_block(data: bytes, *, vocab: int, sequence: int, name: str = "a block") -> Tokens:
    """Return the tokens of a block, int64, shaped [sequences, sequence + 1]. `name` stands for the
    block in error messages.

    Raises ChunkCorrupt: the block is damaged, truncated, or for a different vocabulary or sequence
    length.
    """
    if len(data) < HEADER_BYTES or len(data) > BLOCK_BYTES_MAX:
        raise _refused(name, f"it has {len(data)} bytes")
    magic, width, sequences, row_tokens, crc = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _refused(name, "it is not a data block of version 1")
    if width not in (2, 4) or row_tokens != sequence + 1 or sequences == 0:
        shape = f"{sequences} × {row_tokens} tokens of {width} bytes"
        raise _refused(name, f"its header says {shape}; this run has {sequence + 1} tokens per row")
    body = memoryview(data)[HEADER_BYTES:]
    if len(body) != sequences * row_tokens * width:
        raise _refused(name, f"{len(body)} bytes are not {sequences} × {row_tokens} tokens")
    if zlib.crc32(body) != crc:
        raise _refused(name, "its checksum does not match its tokens")
    rows = np.frombuffer(body, dtype=f"<u{width}").reshape(sequences, row_tokens)
    if int(rows.max()) >= vocab:
        reason = (
            f"it contains token {int(rows.max())}; the largest in the vocabulary is {vocab - 1}"
        )
        raise _refused(name, reason)
    return rows.astype(np.int64)


def read_block(path: Path, *, vocab: int, sequence: int) -> Tokens:
    """Return the tokens of the block file at `path`.

    Raises:
        ChunkMissing: the file does not exist or cannot be read.
        ChunkCorrupt: see `decode_block`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(BLOCK_BYTES_MAX + 1)
    except OSError as exc:
        raise ChunkMissing(f"data block {path} cannot be read: {exc.strerror}") from exc
    return decode_block(data, vocab=vocab, sequence=sequence, name=str(path))


def _refused(name: str, reason: str) -> ChunkCorrupt:
    return ChunkCorrupt(
        f"data block {name} is rejected: {reason}",
        code="DATA",
        likely="the file was damaged on this disk, or it belongs to a different run",
        do="remove the file; the node fetches the block again from its peers",
    )

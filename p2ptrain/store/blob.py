"""Blobs: a long value as a list of chunks, and the manifest that lists them.

A chunk is up to 4 MiB of bytes, identified by its blake3 digest. A value that is longer, or needs a
description, is a blob. Its manifest lists the chunks, and the blob is identified by the digest of
the manifest's canonical bytes. So blobs with equal contents and equal `meta` have the same digest
on every peer. A manifest is itself stored and exchanged as a chunk.

This module does not touch the disk.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import (
    ChunkCorrupt,
    ChunkMissing,
    LocalProtocolError,
    ManifestInvalid,
    ProtocolError,
    RemoteProtocolError,
)
from p2ptrain.ids import Digest

Buffer = bytes | bytearray | memoryview

CHUNK_BYTES = 4 * 2**20
CHUNK_BYTES_MAX = CHUNK_BYTES
"""Maximum bytes of a chunk that is stored, served or accepted.

Chunks are long enough that the latency of a request and of an fsync hardly matters. They are short
enough that a bad chunk costs little and a joiner can fetch from many peers at once."""

CHUNK_BYTES_MIN = 1024
"""Minimum length of a chunk. With much smaller chunks, a manifest would be as large as the blob it
describes."""

MANIFEST_BYTES_MAX = CHUNK_BYTES_MAX
"""A manifest is a chunk, so with 34 bytes per digest it lists up to 123,000 chunks: a blob of about
480 GiB, which is θ and m of 64 G parameters."""

META_BYTES_MAX = 65_536
_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PREFIX = b"\x85\xabchunk_bytes"
"""The start of every canonical manifest: a map with five entries, of which `chunk_bytes` sorts
first."""


def digest_of(data: Buffer) -> Digest:
    """Return the digest of a chunk. blake3 releases the GIL except for very short data."""
    return Digest(blake3(data).hexdigest())


@dataclass(frozen=True, slots=True)
class CheckedChunk:
    """Bytes and their digest, as computed by `checked`. The bytes must not change afterwards."""

    digest: Digest
    data: Buffer


def checked(data: Buffer, expected: Digest | None = None) -> CheckedChunk:
    """Hash the bytes of a chunk, and check them against `expected`.

    Raises:
        ChunkCorrupt: they do not have the expected digest.
    """
    if len(data) > CHUNK_BYTES_MAX:
        raise LocalProtocolError(f"a chunk has at most {CHUNK_BYTES_MAX} bytes")
    digest = digest_of(data)
    if expected is not None and digest != expected:
        raise ChunkCorrupt(f"the bytes received for chunk {expected} have the digest {digest}")
    return CheckedChunk(digest, data)


@dataclass(frozen=True, slots=True)
class BlobManifest:
    """The list of a blob's chunks. All chunks but the last have `chunk_bytes` bytes.

    `meta` is a small map of plain values; only the writer of the blob knows their meaning.
    """

    kind: str
    size: int
    chunk_bytes: int
    chunks: tuple[Digest, ...]
    meta: Mapping[str, object]

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise ManifestInvalid(f"{self.kind[:40]!r} is not a valid kind of blob")
        if not CHUNK_BYTES_MIN <= self.chunk_bytes <= CHUNK_BYTES_MAX:
            raise ManifestInvalid(f"chunks of {self.chunk_bytes} bytes are not allowed")
        if self.size < 0 or -(-self.size // self.chunk_bytes) != len(self.chunks):
            raise ManifestInvalid(
                f"a blob of {self.size} bytes cannot have {len(self.chunks)} chunks"
            )
        if len(pack(dict(self.meta))) > META_BYTES_MAX:
            raise ManifestInvalid(f"the manifest's meta is longer than {META_BYTES_MAX} bytes")

    def chunk_size(self, index: int) -> int:
        """Return the length in bytes of the chunk at `index`."""
        return min(self.chunk_bytes, self.size - index * self.chunk_bytes)

    def sizes(self) -> dict[Digest, int]:
        """Return the length of each distinct chunk.

        Raises ManifestInvalid if a digest has two lengths.
        """
        sizes: dict[Digest, int] = {}
        for index, chunk in enumerate(self.chunks):
            if sizes.setdefault(chunk, self.chunk_size(index)) != self.chunk_size(index):
                raise ManifestInvalid("the same chunk is listed with two lengths")
        return sizes

    def to_wire(self) -> bytes:
        """Return the canonical bytes, whose digest identifies the blob. Raises ManifestInvalid."""
        data = pack(
            {
                "kind": self.kind,
                "size": self.size,
                "chunk_bytes": self.chunk_bytes,
                "chunks": [bytes.fromhex(chunk) for chunk in self.chunks],
                "meta": dict(self.meta),
            }
        )
        if len(data) > MANIFEST_BYTES_MAX:
            raise ManifestInvalid(f"a blob of {self.size} bytes has more chunks than are allowed")
        return data

    @property
    def digest(self) -> Digest:
        """The digest that identifies the blob."""
        return digest_of(self.to_wire())

    @classmethod
    def from_wire(cls, data: Buffer) -> BlobManifest:
        """Parse a manifest, which may be malformed. Raises only ManifestInvalid."""
        try:
            return _parsed(unpack(memoryview(data), bytes_max=MANIFEST_BYTES_MAX))
        except ProtocolError as exc:
            raise ManifestInvalid(f"not a manifest: {exc.what}") from exc


class BlobReader(ABC):
    """A source of blobs: a Store or a StoreReader. Every method may raise StoreError."""

    @abstractmethod
    def has_chunk(self, digest: Digest) -> bool: ...

    @abstractmethod
    def get_chunk(self, digest: Digest) -> bytes:
        """Return the bytes, verified against `digest`. Raises ChunkMissing, ChunkCorrupt."""

    def manifest(self, digest: Digest) -> BlobManifest:
        """Return the manifest. Raises ChunkMissing, ChunkCorrupt, ManifestInvalid."""
        return BlobManifest.from_wire(self.get_chunk(digest))

    def missing_chunks(self, digest: Digest) -> list[Digest]:
        """Return the missing chunks of the blob, each once, in order.

        Raises as `manifest` does. If the manifest itself is missing, fetch it first.
        """
        chunks = dict.fromkeys(self.manifest(digest).chunks)
        return [chunk for chunk in chunks if not self.has_chunk(chunk)]

    def holds_blob(self, digest: Digest) -> bool:
        """Return whether all chunks of the blob are here. They are hashed only when they are
        read.
        """
        try:
            return not self.missing_chunks(digest)
        except (ChunkMissing, ChunkCorrupt):
            return False

    def read_blob(self, digest: Digest) -> bytes:
        """Return the whole blob, with every chunk verified."""
        return read_whole(self.manifest(digest), self._read_into)

    def read_blob_into(self, digest: Digest, *views: memoryview) -> BlobManifest:
        """Fill `views`, one after another, with the blob. They must have its exact size in total.

        After an error the views hold a mixture of old and new bytes.

        Raises ChunkMissing, ChunkCorrupt, ManifestInvalid.
        """
        manifest = self.manifest(digest)
        read_across(manifest, views, self._read_into)
        return manifest

    def _read_into(self, digest: Digest, view: memoryview) -> None:
        """Fill `view` with the verified chunk. Raises ManifestInvalid if their lengths differ."""
        data = self.get_chunk(digest)
        if len(data) != len(view):
            raise ManifestInvalid(f"chunk {digest[:12]}… has {len(data)} bytes, not {len(view)}")
        view[:] = data


START_BYTES = 32
"""Number of bytes from the start of a chunk that are enough for `looks_like_manifest`."""


def looks_like_manifest(data: Buffer) -> bool:
    """Return False if a chunk that begins with `data` cannot be a manifest, True if it may be
    one.
    """
    return bytes(data[: len(_PREFIX)]) == _PREFIX


def _parsed(value: object) -> BlobManifest:
    checked: dict[str, Any] = fields(
        value, kind=str, size=int, chunk_bytes=int, chunks=list, meta=dict
    )
    chunks = tuple(_digest(chunk) for chunk in checked.pop("chunks"))
    return BlobManifest(chunks=chunks, **checked)


def _digest(raw: object) -> Digest:
    if not isinstance(raw, bytes) or len(raw) != 32:
        raise RemoteProtocolError("a chunk digest is not 32 bytes long")
    return Digest(raw.hex())


Fill = Callable[[memoryview], int]
"""Fills a view with the next bytes and returns their number. If they do not fill the view, they are
the last."""


def filling(parts: Iterable[Buffer]) -> Fill:
    """Return a Fill for the bytes of `parts` in order. Each part is released when it has been
    read.
    """
    left, rest = iter(parts), memoryview(b"")

    def fill(view: memoryview) -> int:
        nonlocal rest
        filled = 0
        while filled < len(view):
            if not rest:
                part = next(left, None)
                if part is None:
                    break
                rest = memoryview(part).cast("B")
            taken = min(len(view) - filled, len(rest))
            view[filled : filled + taken] = rest[:taken]
            rest = rest[taken:]
            filled += taken
        return filled

    return fill


def describe(
    kind: str, parts: Iterable[Buffer], chunk_bytes: int, meta: Mapping[str, object]
) -> BlobManifest:
    """Return the manifest of a blob with these bytes, without storing anything."""
    fill, buffer = filling(parts), memoryview(bytearray(chunk_bytes))
    chunks: list[Digest] = []
    size = 0
    while count := fill(buffer):
        chunks.append(digest_of(buffer[:count]))
        size += count
    return BlobManifest(kind, size, chunk_bytes, tuple(chunks), dict(meta))


ReadInto = Callable[[Digest, memoryview], None]
"""Fills a view with the chunk of this digest. The view has the chunk's exact length."""


def read_across(manifest: BlobManifest, views: Sequence[memoryview], read_into: ReadInto) -> None:
    """Fill `views`, one after another, with the blob. They must have its exact size in total."""
    targets = [view.cast("B") for view in views]
    if sum(len(view) for view in targets) != manifest.size:
        raise LocalProtocolError(f"the views do not have the blob's {manifest.size} bytes in total")
    offset = 0
    for index, chunk in enumerate(manifest.chunks):
        _read_chunk(read_into, chunk, targets, offset, manifest.chunk_size(index))
        offset += manifest.chunk_size(index)


def read_whole(manifest: BlobManifest, read_into: ReadInto) -> bytes:
    """Return the blob's bytes. For a moment they are in memory twice; for a large blob, use
    `read_across` to fill a bytearray.

    A view of a BytesIO would avoid the second copy. But a failed read leaves such a view in its
    traceback, and Python 3.12.1 crashes when it collects that.
    """
    whole = bytearray(manifest.size)
    read_across(manifest, [memoryview(whole)], read_into)
    return bytes(whole)


def _read_chunk(
    read_into: ReadInto, chunk: Digest, targets: list[memoryview], offset: int, size: int
) -> None:
    """Read a chunk into bytes [offset, offset + size) of the concatenated targets."""
    starts = itertools.accumulate((len(view) for view in targets), initial=0)
    pieces = [
        view[max(0, offset - start) : max(0, offset + size - start)]
        for view, start in zip(targets, starts, strict=False)
    ]
    pieces = [piece for piece in pieces if len(piece)]
    if len(pieces) == 1:
        read_into(chunk, pieces[0])
        return
    whole = memoryview(bytearray(size))
    read_into(chunk, whole)
    for piece in pieces:
        piece[:] = whole[: len(piece)]
        whole = whole[len(piece) :]

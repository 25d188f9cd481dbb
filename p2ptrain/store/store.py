"""The store: chunks, blobs and the head of one node, safe against a crash at any instant.

The guarantees, in the style of restic:

1. A chunk's name exists only if its bytes are durable.
2. A blob's manifest is written only when the names of its chunks are durable. (Blobs fetched from
   peers are an exception: the manifest comes first, so that a fetch can resume. So use `holds_blob`
   to find out whether a blob is complete, as `put_head` does.)
3. The head is written only when its snapshot is complete and durable.
4. A garbage collection never removes chunks that the durable head, a pin or the caller's `keep`
   reaches, or that were stored since the previous collection.

So after a crash or a full disk at any point, the previous head is valid and everything that it
reaches exists. At worst, some garbage remains.

The store does not know what the bytes mean, or whether a snapshot is certified.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

from p2ptrain.errors import ChunkMissing, StoreError
from p2ptrain.ids import Digest
from p2ptrain.store.blob import (
    CHUNK_BYTES,
    BlobManifest,
    BlobReader,
    Buffer,
    CheckedChunk,
    Fill,
    checked,
    filling,
)
from p2ptrain.store.disk import Disk, LocalDisk, disk_errors
from p2ptrain.store.garbage import Collected, reached_from, reached_from_young, sweep
from p2ptrain.store.head import HEAD_BYTES_MAX, Head
from p2ptrain.store.idle_throttle import IdleThrottle
from p2ptrain.store.lanes import Lanes, patient_threads, put_all, threads
from p2ptrain.store.objects import FANS, ChunkHealth, Objects
from p2ptrain.store.pins import Pins


class Store(BlobReader):
    """One node's chunks, blobs and head, under the directory `root`.

    One process can use the store at a time. A second process gets the error STORE-BUSY until the
    first ends or calls `close`. All methods may be called from any thread, and block while they use
    the disk.
    """

    def __init__(
        self,
        root: Path,
        *,
        disk: Disk | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        lanes: Lanes | None = None,
    ) -> None:
        self.root = root
        self.chunk_bytes = chunk_bytes
        self._lanes = lanes or threads
        self._patient_lanes = lanes or patient_threads
        self._disk = disk or LocalDisk()
        self._pins: Counter[Digest] = Counter()
        # For each blob that is being written: how many chunks had been put when the writing began.
        self._writing: Counter[int] = Counter()
        self._counting = threading.Lock()
        # Held during a garbage collection, so that pins and the head cannot change meanwhile.
        self._collecting = threading.Lock()
        with disk_errors("opening the store", root):
            self._disk.make_directories(root)
            self._lock = self._disk.lock(root / "lock")
        if self._lock is None:
            raise StoreError(
                "another process is using this store",
                code="STORE-BUSY",
                evidence=[f"store {root}"],
                likely="a node is running with the same home directory",
                do="stop that node, or use another --home",
            )
        self._objects = Objects(root, self._disk)
        self.lasting = Pins(root, self._disk)

    def close(self) -> None:
        """Release the store to other processes. All writes are already durable."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # chunks

    def put_chunk(
        self, data: Buffer, *, expected: Digest | None = None, durable: bool = True
    ) -> Digest:
        """Store up to 4 MiB of data as a chunk and return its digest. The chunk is durable on
        return.

        `expected` is the digest that the data should have, if a peer sent the data. With
        `durable=False` the bytes are durable on return but the chunk's name may not be. Its name
        becomes durable with `make_durable`, or with a method that writes a reference to the chunk.

        Raises:
            ChunkCorrupt: the data do not match `expected`; nothing was stored.
            StoreFull: the disk is full; nothing was stored.
        """
        chunk = checked(data, expected)
        self.put_checked(chunk)
        if durable:
            self._objects.make_durable()
        return chunk.digest

    def put_checked(self, chunk: CheckedChunk) -> None:
        """Store a chunk that is already hashed, as `put_chunk` does with `durable=False`.

        Raises StoreFull.
        """
        self._objects.place(chunk.digest, chunk.data)

    def make_durable(self) -> None:
        """Make chunks that were put with `durable=False` durable."""
        self._objects.make_durable()

    def get_chunk(self, digest: Digest) -> bytes:
        """Return the bytes, verified against `digest`.

        Raises:
            ChunkMissing: the chunk is not stored.
            ChunkCorrupt: the file is corrupted; the chunk counts as missing from now on.
        """
        return self._objects.read_chunk(digest)

    def has_chunk(self, digest: Digest) -> bool:
        return self._objects.size(digest) is not None

    def chunk_path(self, digest: Digest) -> Path:
        """Return the file that holds a chunk, for a process that reads it itself.

        Raises ChunkMissing.
        """
        path, _ = self._objects.found(digest)
        return path

    def chunks_in(self, fan: int) -> list[Digest]:
        """Return the chunks in directory number `fan` of the `fans` directories of chunks,
        including damaged chunks that were set aside.
        """
        return self._objects.names_in(fan)

    @property
    def fans(self) -> int:
        return FANS

    def examine(self, digest: Digest) -> ChunkHealth:
        """Read a chunk. A damaged or unreadable chunk counts as missing from then on."""
        return self._objects.examine(digest)

    # blobs

    def put_blob(
        self,
        kind: str,
        parts: Iterable[Buffer],
        meta: Mapping[str, object],
        *,
        chunk_bytes: int | None = None,
    ) -> Digest:
        """Store the bytes of `parts`, one after another, and return the blob's digest. Its chunks
        have `chunk_bytes` bytes, or by default as many as those of other blobs.

        Parts can have any length, and are consumed one at a time while chunks are written. The
        digest does not depend on how the bytes are divided into parts.

        Raises StoreFull. Chunks that were already written are then garbage, but a retry reuses
        them.
        """
        fill, lanes = filling(parts), self._lanes
        return self._put_stream(kind, fill, meta, lanes, chunk_bytes=chunk_bytes)

    def put_stream(
        self,
        kind: str,
        fill: Fill,
        meta: Mapping[str, object],
        *,
        throttle: IdleThrottle | None = None,
    ) -> Digest:
        """Store a blob, as `put_blob` does. `fill` copies its bytes into the store's buffers.

        `fill` is called in one thread, and only when a buffer is free. So it never waits for the
        disk, and neither does a thread that waits for `fill` before it changes the bytes.
        With `throttle`, the writing threads have a low priority and pause while all cores are busy.
        """
        if throttle is None:
            return self._put_stream(kind, fill, meta, self._lanes)
        lanes = self._patient_lanes
        with lanes() as apart:
            return apart.submit(self._put_stream, kind, fill, meta, lanes, throttle).result()

    def _put_stream(
        self,
        kind: str,
        fill: Fill,
        meta: Mapping[str, object],
        lanes: Lanes,
        throttle: IdleThrottle | None = None,
        chunk_bytes: int | None = None,
    ) -> Digest:
        put, length = partial(self.put_chunk, durable=False), chunk_bytes or self.chunk_bytes
        with self._writing_blob():
            chunks, size = put_all(fill, length, put, lanes, throttle)
            manifest = BlobManifest(kind, size, length, tuple(chunks), dict(meta))
            self._objects.make_durable()
            return self.put_chunk(manifest.to_wire())

    @contextmanager
    def _writing_blob(self) -> Iterator[None]:
        with self._counting:
            before = self._objects.puts
            self._writing[before] += 1
        try:
            yield
        finally:
            with self._counting:
                self._writing -= Counter((before,))

    def _read_into(self, digest: Digest, view: memoryview) -> None:
        self._objects.read_into(digest, view)

    # the head

    def put_head(self, head: Head) -> None:
        """Replace the head; it is durable on return.

        Raises ChunkMissing if its snapshot is not completely stored.
        """
        with self._collecting:
            if head.snapshot is not None and not self.holds_blob(head.snapshot):
                raise ChunkMissing(
                    f"the head cannot refer to snapshot {head.snapshot}, which is incomplete"
                )
            self._objects.make_durable()
            self._objects.write_whole(self.root / "head", head.to_bytes(), "writing the head")
            self._objects.make_durable()

    def head(self) -> Head | None:
        """Return the last head; None in a new store. Raises StoreError if it is damaged."""
        path = self.root / "head"
        with disk_errors("reading the head", self.root):
            if self._disk.size(path) is None:
                return None
            return Head.from_bytes(self._disk.read(path, 0, HEAD_BYTES_MAX))

    # retention

    @contextmanager
    def pin(self, digests: Iterable[Digest]) -> Iterator[None]:
        """Within the block, protect `digests` and what they reach from garbage collection."""
        pinned = list(digests)
        with self._collecting:
            self._pins.update(pinned)
        try:
            yield
        finally:
            with self._collecting:
                self._pins -= Counter(pinned)

    def collect_garbage(
        self, keep: Iterable[Digest], *, keep_chunks: Iterable[Digest] = ()
    ) -> Collected:
        """Remove all chunks that are not reached from `keep`, the head or a pin (including
        `lasting`) and were not stored recently.

        `keep` can contain blobs and bare chunks, stored or not; each is read to tell which it is.
        Pass large numbers of bare chunks, such as data blocks, in `keep_chunks`. Chunks stored
        since the previous collection are not removed, so callers have time to add them to `keep`.

        Raises RootsDamaged if a root is damaged, because we cannot tell what it reaches. In this
        case nothing has been removed: fetch the root again first.
        """
        with self._collecting, self.lasting.held() as lasting:
            # Otherwise a crash could restore the previous head, which may reach chunks that are
            # removed below.
            self._objects.make_durable()
            young, puts = self._objects.young()
            head = self.head()
            of_head = [head.snapshot] if head is not None and head.snapshot is not None else []
            reached = reached_from(self._objects, [*keep, *of_head, *self._pins], lasting)
            reached |= reached_from_young(self._objects, young)
            collected = sweep(self._objects, reached | set(keep_chunks))
            # Protect the first chunks of a blob that is being written.
            with self._counting:
                grown = min((puts, *self._writing))
            self._objects.grow_up(grown)
            return collected

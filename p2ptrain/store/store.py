"""The store: chunks, blobs and the head of one node, safe against a crash at any instant.

The guarantees, in the style of restic:

1. A chunk's name exists only if its bytes are durable.
2. A blob's manifest is written only when the names of its chunks are durable. (A blob that comes
   from peers is the exception: its manifest comes first, so that a fetch can resume. So use
   `holds_blob` to find out whether a blob is complete, as `put_head` does.)
3. The head is written only when the snapshot that it names is complete and durable.
4. A collection never removes what the durable head, a pin or the caller's `keep` reaches, nor what
   was put since the previous collection.

So after a crash or a full disk at any point, the previous head is valid and everything that it
reaches exists. At worst some garbage is left behind.

The store does not know what the bytes mean, nor whether a snapshot is certified.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

from p2ptrain.errors import (
    ChunkCorrupt,
    ChunkMissing,
    StoreError,
)
from p2ptrain.ids import Digest
from p2ptrain.store.blob import (
    CHUNK_BYTES,
    BlobManifest,
    Buffer,
    CheckedChunk,
    checked,
    read_across,
    read_whole,
)
from p2ptrain.store.disk import Disk, LocalDisk, disk_errors
from p2ptrain.store.garbage import Collected, reached_from, reached_from_young, sweep
from p2ptrain.store.head import HEAD_BYTES_MAX, Head
from p2ptrain.store.idle_throttle import IdleThrottle
from p2ptrain.store.lanes import Fill, Lanes, filling, patient_threads, put_all, threads
from p2ptrain.store.objects import FANS, ChunkHealth, Objects
from p2ptrain.store.pins import Pins


class Store:
    """One node's chunks, blobs and head, under the directory `root`.

    One process may use it at a time. A second one is refused with the code STORE-BUSY until the
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
        # The number of puts before each blob that is being written.
        self._writing: Counter[int] = Counter()
        self._counting = threading.Lock()
        # Held for a whole collection, so that pins and heads change before or after it.
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
        """Release the store to other processes. Every write was already made durable."""
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
        """Store up to 4 MiB and return their digest; they are durable on return.

        `expected` is the digest under which a peer sent them. With `durable=False` the bytes are
        durable but the name may not be, until `make_durable` or a method that writes a reference to
        it is called.

        Raises:
            ChunkCorrupt: the data is not what was expected; nothing was stored.
            StoreFull: no room; nothing was stored.
        """
        chunk = checked(data, expected)
        self.put_checked(chunk)
        if durable:
            self._objects.make_durable()
        return chunk.digest

    def put_checked(self, chunk: CheckedChunk) -> None:
        """Store bytes that are already hashed, as `put_chunk` does with `durable=False`.

        Raises StoreFull.
        """
        self._objects.place(chunk.digest, chunk.data)

    def make_durable(self) -> None:
        """Make durable what was put with `durable=False`."""
        self._objects.make_durable()

    def get_chunk(self, digest: Digest) -> bytes:
        """Return the bytes, checked against `digest`.

        Raises:
            ChunkMissing: not held.
            ChunkCorrupt: the file is corrupted; the chunk counts as missing from now on.
        """
        return self._objects.read_chunk(digest)

    def has_chunk(self, digest: Digest) -> bool:
        return self._objects.size(digest) is not None

    def chunk_path(self, digest: Digest) -> Path:
        """Return the file that holds a chunk, for a process that reads it itself.

        Raises ChunkMissing.
        """
        if not self.has_chunk(digest):
            raise ChunkMissing(f"chunk {digest} is not in the store")
        return self._objects.path(digest)

    def chunks_in(self, fan: int) -> list[Digest]:
        """Return the chunks of one of the `fans` directories, including those set aside."""
        return self._objects.names_in(fan)

    @property
    def fans(self) -> int:
        return FANS

    def examine(self, digest: Digest) -> ChunkHealth:
        """Read a chunk. A damaged or unreadable chunk counts as missing from then on."""
        return self._objects.examine(digest)

    # blobs

    def put_blob(self, kind: str, parts: Iterable[Buffer], meta: Mapping[str, object]) -> Digest:
        """Store the bytes of `parts`, one after the other, and return the blob's digest.

        Parts may be of any length, and are consumed one at a time while chunks are written. Equal
        arguments give equal digests, however the bytes are cut into parts.

        Raises StoreFull. The chunks that were already written are then garbage, and are reused on a
        retry.
        """
        return self.put_stream(kind, filling(parts), meta)

    def put_stream(
        self,
        kind: str,
        fill: Fill,
        meta: Mapping[str, object],
        *,
        throttle: IdleThrottle | None = None,
    ) -> Digest:
        """Store a blob, as `put_blob` does, of bytes that `fill` copies to where the store wants
        them.

        `fill` is called in one thread, and only when its bytes can be taken at once. So an owner
        that must keep the bytes unchanged until then does not wait for the disk. With `throttle`,
        the writing threads have a low priority and pause while all cores are busy.
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
    ) -> Digest:
        put = partial(self.put_chunk, durable=False)
        with self._writing_blob():
            chunks, size = put_all(fill, self.chunk_bytes, put, lanes, throttle)
            manifest = BlobManifest(kind, size, self.chunk_bytes, tuple(chunks), dict(meta))
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

    def manifest(self, digest: Digest) -> BlobManifest:
        """Return the manifest. Raises ChunkMissing, ChunkCorrupt, ManifestInvalid."""
        return BlobManifest.from_wire(self._objects.read_chunk(digest))

    def holds_blob(self, digest: Digest) -> bool:
        """Return whether the whole blob is here. Its bytes are hashed only when they are read."""
        try:
            return not self.missing_chunks(digest)
        except (ChunkMissing, ChunkCorrupt):
            return False

    def missing_chunks(self, digest: Digest) -> list[Digest]:
        """Return the chunks that the blob still lacks, each once, in order.

        Raises ChunkMissing if its manifest is not here: fetch that first.
        """
        chunks = dict.fromkeys(self.manifest(digest).chunks)
        return [chunk for chunk in chunks if not self.has_chunk(chunk)]

    def read_blob(self, digest: Digest) -> bytes:
        """Return the whole blob, with every chunk checked."""
        return read_whole(self.manifest(digest), self._objects.read_into)

    def read_blob_into(self, digest: Digest, *views: memoryview) -> BlobManifest:
        """Fill `views`, one after the other, with the blob; together they have its exact size.

        After an error the views hold a mixture of old and new bytes.

        Raises ChunkMissing, ChunkCorrupt, ManifestInvalid.
        """
        manifest = self.manifest(digest)
        read_across(manifest, views, self._objects.read_into)
        return manifest

    # the head

    def put_head(self, head: Head) -> None:
        """Replace the head; it is durable on return.

        Raises ChunkMissing if the snapshot that it names is not completely here.
        """
        with self._collecting:
            if head.snapshot is not None and not self.holds_blob(head.snapshot):
                raise ChunkMissing(
                    f"the head would name snapshot {head.snapshot}, which is not held completely"
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
        """Within the block, keep collections from removing these and what they reach."""
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
        """Remove the chunks that are not reached from `keep`, the head or a pin (those in `lasting`
        too), and were not put recently.

        `keep` may name blobs and bare chunks, held or not; each is read to see which it is. Many
        bare chunks, such as data blocks, are better named in `keep_chunks`. The next collection
        spares what was put since the previous one, so there is time to record its digest where
        `keep` is computed from.

        Raises RootsDamaged, with nothing removed, if a root is damaged, since it is then unknown
        what it
        reaches. Fetch it again first.
        """
        with self._collecting, self.lasting.held() as lasting:
            # After a crash, a head whose rename is not durable could revert to the
            # previous one.
            self._objects.make_durable()
            young, puts = self._objects.young()
            roots = [*keep, *self._head_snapshot(), *self._pins]
            reached = reached_from(self._objects, roots, lasting)
            reached |= reached_from_young(self._objects, young)
            collected = sweep(self._objects, reached | set(keep_chunks))
            # Nothing else protects the first chunks of a blob that is being written.
            with self._counting:
                grown = min((puts, *self._writing))
            self._objects.grow_up(grown)
            return collected

    def _head_snapshot(self) -> list[Digest]:
        head = self.head()
        return [head.snapshot] if head is not None and head.snapshot is not None else []

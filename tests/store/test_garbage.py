"""Garbage collection removes exactly the chunks that nothing refers to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import ChunkCorrupt
from p2ptrain.ids import Digest, RunId
from p2ptrain.store import Collected, Head, MemoryDisk, RootsDamaged, Store, digest_of
from tests.store.turns import AtOnce


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def store(disk: MemoryDisk) -> Store:
    return Store(Path("/store"), disk=disk, chunk_bytes=1024)


def grown_up(store: Store) -> None:
    """Run a collection that keeps everything, so that the next collection does not spare these
    chunks as new.
    """
    everything = [digest for fan in range(store.fans) for digest in store.chunks_in(fan)]
    assert store.collect_garbage([], keep_chunks=everything).chunks == 0


def blob(store: Store, seed: int, chunks: int = 3) -> Digest:
    return store.put_blob(
        "update", [b"%d-%d|" % (seed, n) * 200 for n in range(chunks)], {"n": seed}
    )


def test_kept_blobs_stay_and_the_others_are_removed(store: Store) -> None:
    kept, lost = blob(store, 1), blob(store, 2)
    bare = store.put_chunk(b"a data block")
    grown_up(store)
    collected = store.collect_garbage([kept], keep_chunks=[bare])
    assert store.read_blob(kept)
    assert store.get_chunk(bare) == b"a data block"
    assert not store.has_chunk(lost)
    assert collected.chunks == 4
    assert collected.bytes_freed > 2000
    assert store.collect_garbage([kept], keep_chunks=[bare]) == Collected(
        0, 0, collected.chunks_left
    )


def test_new_chunk_is_spared_by_the_next_collection(store: Store) -> None:
    fresh = blob(store, 1)
    assert store.collect_garbage([]).chunks == 0
    assert store.holds_blob(fresh)
    assert store.collect_garbage([]).chunks == 4
    assert not store.has_chunk(fresh)


def test_chunk_that_is_stored_again_is_spared_again(store: Store) -> None:
    store.put_chunk(b"again")
    grown_up(store)
    digest = store.put_chunk(b"again")
    assert store.collect_garbage([]).chunks == 0
    assert store.has_chunk(digest)


def test_snapshot_of_the_head_is_kept_without_being_listed(store: Store) -> None:
    snapshot = blob(store, 1)
    store.put_head(Head(RunId("cd" * 32), 4, digest_of(b"e"), 2, snapshot, 2))
    grown_up(store)
    store.collect_garbage([])
    assert store.read_blob(snapshot)


def test_pin_protects_a_blob_even_before_its_manifest_is_stored(store: Store) -> None:
    whole = blob(store, 1)
    manifest = store.get_chunk(whole)
    grown_up(store)
    store.collect_garbage(store.manifest(whole).chunks)
    assert not store.has_chunk(whole)
    with store.pin([whole]):
        store.put_chunk(manifest)
        grown_up(store)
        store.collect_garbage([])
        assert store.holds_blob(whole)
    store.collect_garbage([])
    assert not store.has_chunk(whole)


class DiskWithListingHook(MemoryDisk):
    """Calls `on_listing` whenever a sweep lists the files of a directory."""

    on_listing = staticmethod(lambda: None)

    def names(self, path: Path) -> list[str]:
        self.on_listing()
        return super().names(path)


def test_chunk_stored_during_a_sweep_is_spared() -> None:
    disk = DiskWithListingHook()
    store = Store(Path("/store"), disk=disk, chunk_bytes=1024)
    digest = store.put_chunk(b"garbage until this very moment")
    grown_up(store)

    def put_once() -> None:
        disk.on_listing = lambda: None
        store.put_chunk(b"garbage until this very moment")

    disk.on_listing = put_once
    store.collect_garbage([])
    assert store.has_chunk(digest)


def test_blob_being_written_survives_any_number_of_collections(store: Store) -> None:
    collections = []

    def parts() -> Iterator[bytes]:
        for number in range(5):
            yield b"%d" % number * 1024
            collections.append(store.collect_garbage([]).chunks)

    digest = store.put_blob("snapshot", parts(), {})
    assert collections == [0] * 5
    assert len(store.read_blob(digest)) == 5 * 1024


def test_damaged_root_stops_the_collection_before_any_removal(
    store: Store, disk: MemoryDisk
) -> None:
    kept, other = blob(store, 1), blob(store, 2)
    grown_up(store)
    disk.damage(store.chunk_path(kept), lambda data: b"\0" + data[1:])
    for _ in range(2):  # the first attempt sets the root aside
        with pytest.raises(RootsDamaged) as caught:
            store.collect_garbage([kept])
        assert (caught.value.roots, caught.value.pinned) == ([kept], [])
    assert store.holds_blob(other)


def test_all_damaged_roots_are_named_and_pinned_ones_can_be_unpinned(
    store: Store, disk: MemoryDisk
) -> None:
    kept, pinned = blob(store, 1), blob(store, 2)
    store.lasting.change(add=pinned)
    grown_up(store)
    for root in (kept, pinned):
        disk.damage(store.chunk_path(root), lambda data: b"\0" + data[1:])
    with pytest.raises(RootsDamaged) as caught:
        store.collect_garbage([kept])
    both = caught.value
    assert (both.roots, both.pinned) == (sorted((kept, pinned)), [pinned])
    assert "(and 1 more)" in both.what
    home = Path("/an other/home")
    assert f"p2ptrain store unpin {pinned} --home '/an other/home', if" in both.remedy(home)
    left = both.without([pinned])
    assert left is not None
    assert (left.roots, left.pinned, "unpin" in left.remedy(home)) == ([kept], [], False)
    assert left.without([kept]) is None
    store.lasting.change(remove=pinned)
    assert store.collect_garbage([]).chunks == 8


class DiskWithAnotherReader(MemoryDisk):
    """A disk on which another process sets `path` aside just before its nth read (n = `before`)."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.before = before
        self.path: Path | None = None

    def read(self, path: Path, offset: int, size: int) -> bytes:
        if path == self.path:
            self.before -= 1
            if self.before == 0:
                self.replace(path, path.with_name(path.name + ".corrupt"))
        return super().read(path, offset, size)


@pytest.mark.parametrize("before", [1, 2, 3])
def test_root_set_aside_by_another_reader_stops_the_collection(before: int) -> None:
    disk = DiskWithAnotherReader(before)
    store = Store(Path("/store"), disk=disk, chunk_bytes=1024)
    kept = blob(store, 1)
    chunks = store.manifest(kept).chunks
    grown_up(store)
    disk.path = store.chunk_path(kept)
    with pytest.raises(ChunkCorrupt):
        store.collect_garbage([kept])
    assert all(map(store.has_chunk, chunks))


def test_data_block_that_looks_like_a_manifest_is_kept_as_a_chunk(store: Store) -> None:
    block = store.put_chunk(b"\x85\xabchunk_bytes but not really")
    grown_up(store)
    store.collect_garbage([block])
    assert store.has_chunk(block)


def test_garbage_that_was_set_aside_is_removed_too(store: Store, disk: MemoryDisk) -> None:
    digest = store.put_chunk(b"z" * 500)
    grown_up(store)
    disk.damage(store.chunk_path(digest), lambda data: data[:-1])
    with pytest.raises(ChunkCorrupt):
        store.get_chunk(digest)
    assert store.collect_garbage([]) == Collected(1, 499, 0)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6),
    st.sets(st.integers(0, 5)),
)
def test_shared_chunk_stays_while_any_blob_needs_it(
    contents: list[list[int]], kept_numbers: set[int]
) -> None:
    store = Store(Path("/store"), disk=MemoryDisk(), chunk_bytes=1024, lanes=AtOnce)
    blobs = [
        store.put_blob("update", [b"%d" % part * 1024 for part in content], {})
        for content in contents
    ]
    grown_up(store)
    kept = {blobs[number] for number in kept_numbers if number < len(blobs)}
    store.collect_garbage(kept)
    for digest, content in zip(blobs, contents, strict=True):
        if digest in kept:
            assert store.read_blob(digest) == b"".join(b"%d" % part * 1024 for part in content)
        else:
            assert not store.has_chunk(digest)


def test_blob_being_written_protects_only_its_own_chunks(store: Store) -> None:
    old = blob(store, 1)

    def parts() -> Iterator[bytes]:
        yield b"first" * 1024
        store.collect_garbage([])  # spares both blobs, since their chunks are new
        # This collection removes the old blob, but not the new one, which is still being written.
        assert store.collect_garbage([]).chunks == 4
        yield b"second" * 1024

    new = store.put_blob("update", parts(), {})
    assert not store.has_chunk(old)
    assert store.read_blob(new) == b"first" * 1024 + b"second" * 1024

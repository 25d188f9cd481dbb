"""The store on an intact disk, on a damaged disk, and when used by two processes."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import (
    ChunkCorrupt,
    ChunkMissing,
    LocalProtocolError,
    ManifestInvalid,
    StoreError,
)
from p2ptrain.ids import Digest, RunId
from p2ptrain.store import (
    CHUNK_BYTES_MAX,
    BlobManifest,
    ChunkHealth,
    Collected,
    Disk,
    Head,
    IdleThrottle,
    LocalDisk,
    MemoryDisk,
    Store,
    StoreReader,
    digest_of,
)
from p2ptrain.store.blob import filling
from p2ptrain.store.lanes import STAND_BACK
from p2ptrain.store.objects import Objects

ABSENT = Digest("ab" * 32)
RUN = RunId("cd" * 32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", chunk_bytes=1024) as store:
        yield store


def memory_store() -> Store:
    return Store(Path("/store"), disk=MemoryDisk(), chunk_bytes=1024)


def rot(store: Store, digest: Digest) -> None:
    path = store.chunk_path(digest)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_chunk_is_read_back_unchanged_and_is_one_file(store: Store) -> None:
    digest = store.put_chunk(b"chunk")
    assert digest == store.put_chunk(bytearray(b"chunk"))
    assert store.get_chunk(digest) == b"chunk"
    assert store.has_chunk(digest)
    assert store.chunk_path(digest).read_bytes() == b"chunk"
    assert list((store.root / "tmp").iterdir()) == []


def test_missing_chunk_raises_chunk_missing(store: Store) -> None:
    assert not store.has_chunk(ABSENT)
    for use in (store.get_chunk, store.chunk_path, store.manifest, store.missing_chunks):
        with pytest.raises(ChunkMissing):
            use(ABSENT)
    assert not store.holds_blob(ABSENT)


def test_bytes_that_do_not_match_the_expected_digest_are_not_stored(store: Store) -> None:
    with pytest.raises(ChunkCorrupt):
        store.put_chunk(b"forged", expected=ABSENT)
    assert not store.has_chunk(ABSENT)
    assert not store.has_chunk(digest_of(b"forged"))


def test_chunk_that_is_too_long_raises_local_protocol_error(store: Store) -> None:
    with pytest.raises(LocalProtocolError):
        store.put_chunk(bytes(CHUNK_BYTES_MAX + 1))


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 4096, 5000])
def test_blob_of_any_size_is_read_back_unchanged(store: Store, size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    digest = store.put_blob("update", [data], {"step": size})
    assert store.read_blob(digest) == data
    assert store.manifest(digest) == BlobManifest(
        "update", size, 1024, store.manifest(digest).chunks, {"step": size}
    )
    assert store.holds_blob(digest)
    assert store.missing_chunks(digest) == []


@settings(max_examples=40)
@given(st.binary(max_size=6000), st.lists(st.integers(0, 6000), max_size=5))
def test_digest_of_a_blob_does_not_depend_on_how_it_was_split(data: bytes, cuts: list[int]) -> None:
    store = memory_store()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = [data[start:stop] for start, stop in pairwise(edges)]
    assert store.put_blob("update", parts, {}) == store.put_blob("update", [data], {})


def test_digest_of_a_blob_covers_its_kind_and_meta(store: Store) -> None:
    names = {
        store.put_blob("update", [b"x"], {"step": 1}),
        store.put_blob("update", [b"x"], {"step": 2}),
        store.put_blob("index", [b"x"], {"step": 1}),
    }
    assert len(names) == 3


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=4))
def test_blob_can_be_read_into_several_views(sizes: list[int]) -> None:
    store = memory_store()
    data = np.random.default_rng(1).bytes(sum(sizes))
    digest = store.put_blob("snapshot", [data], {})
    views = [bytearray(size) for size in sizes]
    store.read_blob_into(digest, *(memoryview(view) for view in views))
    assert b"".join(views) == data


def test_views_of_the_wrong_total_size_are_refused_and_not_written_to(store: Store) -> None:
    digest = store.put_blob("update", [b"x" * 3000], {})
    view = bytearray(2999)
    with pytest.raises(LocalProtocolError):
        store.read_blob_into(digest, memoryview(view))
    assert view == bytes(2999)


def test_plain_chunk_is_not_a_blob(store: Store) -> None:
    digest = store.put_chunk(b"data block")
    with pytest.raises(ManifestInvalid):
        store.holds_blob(digest)


def test_manifest_with_a_wrong_chunk_length_is_refused(store: Store) -> None:
    chunk = store.put_chunk(b"x" * 100)
    lie = BlobManifest("update", 900, 1024, (chunk,), {})
    with pytest.raises(ManifestInvalid):
        store.read_blob(store.put_chunk(lie.to_wire()))
    assert store.get_chunk(chunk) == b"x" * 100


def test_corrupt_chunk_is_set_aside_and_can_be_stored_again(store: Store) -> None:
    digest = store.put_blob("update", [b"x" * 3000], {})
    (last,) = store.manifest(digest).chunks[2:]
    rot(store, last)
    assert store.holds_blob(digest)  # does not read the contents
    with pytest.raises(ChunkCorrupt) as caught:
        store.read_blob(digest)
    assert caught.value.code == "CKPT-HASH"
    assert store.missing_chunks(digest) == [last]
    store.put_chunk(b"x" * 952, expected=last)
    assert store.read_blob(digest) == b"x" * 3000
    assert not list(store.root.rglob("*.corrupt"))


@pytest.mark.parametrize(
    "change", [lambda data: b"", lambda data: data[:-1], lambda data: data * 2]
)
def test_chunk_of_a_wrong_length_is_corrupt(store: Store, change: Callable[[bytes], bytes]) -> None:
    digest = store.put_blob("update", [b"y" * 700], {})
    (chunk,) = store.manifest(digest).chunks
    path = store.chunk_path(chunk)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ChunkCorrupt):
        store.read_blob(digest)
    assert not store.holds_blob(digest)


def head_of(store: Store, step: int, snapshot: Digest | None = None) -> Head:
    step_of_snapshot = step if snapshot else None
    return Head(RUN, 2 * step, digest_of(b"%d" % step), step, snapshot, step_of_snapshot)


def test_head_is_the_one_stored_last(store: Store) -> None:
    assert store.head() is None
    snapshot = store.put_blob("snapshot", [b"theta"], {})
    store.put_head(head_of(store, 1))
    store.put_head(head_of(store, 2, snapshot))
    assert store.head() == head_of(store, 2, snapshot)


def test_head_is_still_there_after_reopening(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.put_head(head_of(store, 7))
    with Store(tmp_path / "store") as store:
        assert store.head() == head_of(store, 7)


def test_head_cannot_name_an_incomplete_snapshot(store: Store) -> None:
    snapshot = store.put_blob("snapshot", [b"x" * 2000], {})
    store.chunk_path(store.manifest(snapshot).chunks[0]).unlink()
    store.put_head(head_of(store, 1))
    for absent in (snapshot, ABSENT):
        with pytest.raises(ChunkMissing):
            store.put_head(head_of(store, 2, absent))
    assert store.head() == head_of(store, 1)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"x" * 10_000])
def test_damaged_head_is_reported(store: Store, content: bytes) -> None:
    store.put_head(head_of(store, 1))
    (store.root / "head").write_bytes(content)
    with pytest.raises(StoreError) as caught:
        store.head()
    assert caught.value.code == "STORE-HEAD"


def test_flipped_bit_in_any_byte_of_a_head_is_noticed(store: Store) -> None:
    store.put_head(head_of(store, 1))
    good = (store.root / "head").read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        (store.root / "head").write_bytes(bad)
        with pytest.raises(StoreError):
            store.head()


def test_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from p2ptrain.store import Store;"
            "s = Store(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()",
            str(tmp_path / "store"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreError) as caught:
            Store(tmp_path / "store")
        assert caught.value.code == "STORE-BUSY"
        holder.kill()
        holder.wait()
        Store(tmp_path / "store").close()


@pytest.mark.parametrize("disk", [LocalDisk(), MemoryDisk()], ids=["local", "memory"])
@pytest.mark.parametrize("name", ["stray", f".{'b' * 63}.XhK3fQ", ".nfs0000000012ab", "ü.corrupt"])
def test_unknown_files_among_the_chunks_are_ignored_and_kept(
    tmp_path: Path, disk: Disk, name: str
) -> None:
    with Store(tmp_path / "store", disk=disk) as store:
        garbage = store.put_chunk(b"garbage")
        beside = store.root / "objects" / garbage[0] / name
        disk.write(beside, memoryview(b"another program's"))
        assert store.collect_garbage([]) == Collected(0, 0, 1)
        (listed,) = (digest for fan in range(store.fans) for digest in store.chunks_in(fan))
        assert store.examine(listed) == ChunkHealth(7)
        assert store.collect_garbage([]) == Collected(1, 7, 0)
        assert disk.size(beside) == 17


def test_unknown_files_in_the_tmp_folder_do_not_block_opening(tmp_path: Path) -> None:
    folder, file = (tmp_path / "store" / "tmp" / name for name in ("@eaDir", ".nfs0000000012ab"))
    folder.mkdir(parents=True)
    file.write_bytes(b"in use")
    with Store(tmp_path / "store") as store:
        assert store.get_chunk(store.put_chunk(b"chunk")) == b"chunk"
    assert folder.is_dir()
    assert file.exists()


def test_leftovers_of_a_crash_are_removed_on_opening(tmp_path: Path) -> None:
    Store(tmp_path / "store").close()
    (tmp_path / "store" / "tmp" / "123-4").write_bytes(b"half a chunk")
    with Store(tmp_path / "store"):
        assert list((tmp_path / "store" / "tmp").iterdir()) == []


def test_threads_can_store_the_same_chunks_at_the_same_time(store: Store) -> None:
    blobs = []

    def put() -> None:
        parts = [b"%04d" % index * 256 for index in range(20)]
        blobs.append(store.put_blob("update", parts, {}))

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(blobs) == 4
    assert len(set(blobs)) == 1
    assert len(store.read_blob(blobs[0])) == 20 * 1024


class FailingDisk(MemoryDisk):
    """A disk on which some files cannot be read. `failing` maps their paths to error numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[Path, int] = {}

    def read(self, path: Path, offset: int, size: int) -> bytes:
        if path in self.failing:
            raise OSError(self.failing[path], "injected by the test")
        return super().read(path, offset, size)


def test_examined_chunk_that_is_damaged_or_unreadable_is_set_aside() -> None:
    disk = FailingDisk()
    store = Store(Path("/store"), disk=disk)
    sound, rotten, unreadable = (store.put_chunk(data) for data in (b"one", b"two", b"three"))
    listed = [digest for fan in range(store.fans) for digest in store.chunks_in(fan)]
    assert listed == sorted((sound, rotten, unreadable))
    disk.damage(store.chunk_path(rotten), lambda data: b"rot")
    bad_sector = store.chunk_path(unreadable)
    disk.failing[bad_sector] = errno.EIO
    assert store.examine(sound) == ChunkHealth(3)
    assert store.examine(digest_of(b"never put")) == ChunkHealth()
    assert "no longer matches" in store.examine(rotten).why
    assert "the disk failed" in store.examine(unreadable).why
    for digest in (rotten, unreadable):
        assert not store.has_chunk(digest)
        assert store.examine(digest).why == "it was set aside earlier"
    assert sorted(StoreReader(Path("/store"), disk).set_aside()) == sorted((rotten, unreadable))
    store.put_chunk(b"two")
    assert store.examine(rotten) == ChunkHealth(3)
    assert list(StoreReader(Path("/store"), disk).set_aside()) == [unreadable]


def test_lack_of_permission_does_not_count_as_corruption() -> None:
    disk = FailingDisk()
    store = Store(Path("/store"), disk=disk)
    digest = store.put_chunk(b"one")
    disk.failing[store.chunk_path(digest)] = errno.EACCES
    with pytest.raises(StoreError) as caught:
        store.examine(digest)
    assert caught.value.code == "STORE-READONLY"
    assert store.has_chunk(digest)


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_shortage_of_resources_does_not_count_as_corruption(shortage: int) -> None:
    disk = FailingDisk()
    store = Store(Path("/store"), disk=disk)
    digest = store.put_chunk(b"one")
    disk.failing[store.chunk_path(digest)] = shortage
    assert store.examine(digest) == ChunkHealth()
    with pytest.raises(StoreError) as caught:
        store.get_chunk(digest)
    assert caught.value.code in ("FD-LIMIT", "MEM-HOST")
    assert store.has_chunk(digest)


class VanishingDisk(MemoryDisk):
    """A disk on which the files in `vanishing` are removed just before they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.vanishing: set[Path] = set()

    def read(self, path: Path, offset: int, size: int) -> bytes:
        if path in self.vanishing:
            self.remove(path)
        return super().read(path, offset, size)


def test_chunk_removed_just_before_it_is_read_is_missing_not_damaged() -> None:
    disk = VanishingDisk()
    store = Store(Path("/store"), disk=disk)
    read, examined = store.put_chunk(b"one"), store.put_chunk(b"two")
    disk.vanishing = {store.chunk_path(digest) for digest in (read, examined)}
    with pytest.raises(ChunkMissing):
        store.get_chunk(read)
    assert store.examine(examined) == ChunkHealth()


class DiskThatAsksWho(MemoryDisk):
    """Records the niceness of the threads that write to it."""

    def __init__(self) -> None:
        super().__init__()
        self.nice: set[int] = set()

    def write(self, path: Path, data: memoryview) -> None:
        self.nice.add(niceness())
        super().write(path, data)


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.parametrize("patient", [True, False])
def test_background_work_runs_in_threads_of_low_priority(patient: bool) -> None:
    disk, data, reading = DiskThatAsksWho(), bytes(range(256)) * 40, set[int]()
    store = Store(Path("/store"), disk=disk, chunk_bytes=1024)
    own, filled = niceness(), filling([data])

    def fill(view: memoryview) -> int:
        reading.add(niceness())
        return filled(view)

    digest = store.put_stream("snapshot", fill, {}, throttle=IdleThrottle() if patient else None)
    assert store.read_blob(digest) == data
    assert disk.nice == reading == {min(own + STAND_BACK, STAND_BACK) if patient else own}
    assert niceness() == own


@pytest.mark.parametrize("seed", range(8))
def test_directory_sync_that_failed_is_tried_again(seed: int) -> None:
    disk, root = MemoryDisk(), Path("/store")
    disk.make_directories(root)
    objects = Objects(root, disk)
    objects.make_durable()
    digest = digest_of(b"chunk")
    objects.place(digest, b"chunk")
    disk.fail_at, disk.failure = len(disk.writes) + 1, errno.EIO
    with pytest.raises(StoreError):
        objects.make_durable()
    objects.make_durable()
    assert Objects(root, disk.reboot(random.Random(seed))).read_chunk(digest) == b"chunk"

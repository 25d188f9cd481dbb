"""One conformance suite for disks, run on the real disk and on the in-memory disk."""

from __future__ import annotations

import errno
import mmap
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.store import Disk, LocalDisk, MemoryDisk, PowerCut


@pytest.fixture(params=["local", "memory"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return LocalDisk() if request.param == "local" else MemoryDisk()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> Path:
    disk.make_directories(tmp_path / "a" / "b")
    return tmp_path / "a" / "b"


def test_file_can_be_read_whole_or_in_part(disk: Disk, root: Path) -> None:
    disk.write(root / "f", memoryview(b"hello world"))
    assert disk.read(root / "f", 0, 100) == b"hello world"
    assert disk.read(root / "f", 6, 3) == b"wor"
    assert disk.read(root / "f", 11, 5) == b""
    assert disk.read(root / "f", 50, 5) == b""


def test_reading_a_chunk_makes_no_second_copy_in_memory(tmp_path: Path) -> None:
    disk, size = LocalDisk(), 4 * 2**20
    disk.write(tmp_path / "chunk", memoryview(bytes(size)))
    tracemalloc.start()
    try:
        assert len(disk.read(tmp_path / "chunk", 0, size + 1)) == size
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()


def test_writing_replaces_the_content_and_appending_extends_it(disk: Disk, root: Path) -> None:
    disk.write(root / "f", memoryview(b"a long first content"))
    disk.write(root / "f", memoryview(b"short"))
    disk.opened(root / "f").append(memoryview(b"er"))
    disk.truncate(root / "f", 6)
    assert disk.read(root / "f", 0, 100) == b"shorte"
    assert disk.size(root / "f") == 6


def test_open_file_is_unaffected_by_renames(disk: Disk, root: Path) -> None:
    disk.write(root / "f", memoryview(b"old"))
    old = disk.opened(root / "f")
    disk.write(root / "new", memoryview(b"new"))
    new = disk.opened(root / "new")
    disk.replace(root / "new", root / "f")
    old.append(memoryview(b" and gone"))
    new.append(memoryview(b" and longer"))
    new.truncate(8)
    new.append(memoryview(b"here"))
    new.sync()
    assert disk.read(root / "f", 0, 99) == b"new and here"
    old.close()
    new.close()
    new.close()


def test_read_into_reads_at_most_what_the_file_has(disk: Disk, root: Path) -> None:
    disk.write(root / "f", memoryview(b"abcdef"))
    short, long = bytearray(3), bytearray(9)
    assert disk.read_into(root / "f", memoryview(short)) == 3
    assert disk.read_into(root / "f", memoryview(long)) == 6
    assert (bytes(short), bytes(long)) == (b"abc", b"abcdef\0\0\0")


def test_replace_overwrites_an_existing_file(disk: Disk, root: Path) -> None:
    disk.write(root / "old", memoryview(b"old"))
    disk.write(root / "new", memoryview(b"new"))
    disk.sync(root / "new")
    disk.replace(root / "new", root / "old")
    disk.sync_directory(root)
    assert disk.names(root) == ["old"]
    assert disk.read(root / "old", 0, 9) == b"new"


def test_missing_file_has_no_size_and_raises_file_not_found(disk: Disk, root: Path) -> None:
    assert disk.size(root / "none") is None
    for use in (
        lambda: disk.read(root / "none", 0, 1),
        lambda: disk.opened(root / "none"),
        lambda: disk.remove(root / "none"),
        lambda: disk.replace(root / "none", root / "other"),
    ):
        with pytest.raises(FileNotFoundError):
            use()
    assert disk.names(root) == []


def test_lock_is_held_by_one_owner_until_it_is_closed(disk: Disk, root: Path) -> None:
    lock = disk.lock(root / "lock")
    assert lock is not None
    assert disk.lock(root / "lock") is None
    lock.close()
    again = disk.lock(root / "lock")
    assert again is not None
    again.close()


def test_only_synced_writes_are_certain_to_survive_a_power_cut(tmp_path: Path) -> None:
    survived: set[tuple[str, ...]] = set()
    contents: set[bytes] = set()
    for seed in range(200):
        disk = MemoryDisk()
        disk.make_directories(tmp_path)
        disk.write(tmp_path / "sure", memoryview(b"sure"))
        disk.sync(tmp_path / "sure")
        disk.sync_directory(tmp_path)
        disk.write(tmp_path / "named", memoryview(b"data" * 300))
        disk.sync_directory(tmp_path)
        disk.write(tmp_path / "written", memoryview(b"data"))
        disk.remove(tmp_path / "sure")
        after = disk.reboot(random.Random(seed))
        survived.add(tuple(after.names(tmp_path)))
        assert "named" in after.names(tmp_path)
        if "sure" in after.names(tmp_path):
            assert after.read(tmp_path / "sure", 0, 9) == b"sure"
        contents.add(after.read(tmp_path / "named", 0, 9999))
    assert ("named",) in survived
    assert ("named", "sure", "written") in survived
    assert {b"", b"data" * 300} < contents
    assert len(survived) + len(contents) > 20  # unsynced files survive in part, in many ways


def pages(count: int) -> memoryview:
    """Return memory that starts at a page boundary and has no two equal pages."""
    memory = memoryview(mmap.mmap(-1, count * mmap.PAGESIZE))
    memory[:] = b"".join(bytes([n]) * mmap.PAGESIZE for n in range(count))
    return memory


ALIKE = {
    "whole pages": lambda memory: memory,
    "ends within a page": lambda memory: memory[:-1],
    "starts within a page": lambda memory: memory[1:],
    "length of whole pages, but not aligned": lambda memory: memory[512 : -mmap.PAGESIZE + 512],
    "read-only": lambda memory: memory.toreadonly(),
    "nothing": lambda memory: memory[:0],
}


@pytest.mark.parametrize("name", ALIKE)
def test_memory_at_any_address_and_of_any_length_is_written(
    disk: Disk, root: Path, name: str
) -> None:
    data = ALIKE[name](pages(3))
    disk.write(root / "f", memoryview(b"longer than that, and replaced" * 1000))
    disk.write(root / "f", data)
    disk.sync(root / "f")
    assert disk.read(root / "f", 0, 99_999) == data


def refuse_around_the_cache(monkeypatch: pytest.MonkeyPatch, name: str, error: int) -> None:
    """Make the first call of os.`name` that bypasses the page cache fail with `error`."""
    call: Callable[..., object] = getattr(os, name)
    refused: list[object] = []

    def failing(*words: Any) -> object:
        if not refused and (name == "write" or words[1] & os.O_DIRECT):
            refused.append(words)
            raise OSError(error, "injected by the test")
        return call(*words)

    monkeypatch.setattr(os, name, failing)


@pytest.mark.parametrize("call", ["open", "write"])
def test_files_are_written_through_the_page_cache_if_it_cannot_be_bypassed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    refuse_around_the_cache(monkeypatch, call, errno.EINVAL)
    LocalDisk().write(tmp_path / "f", pages(2))
    monkeypatch.undo()
    assert (tmp_path / "f").read_bytes() == pages(2)


@pytest.mark.parametrize("call", ["open", "write"])
def test_full_disk_error_is_not_retried_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    refuse_around_the_cache(monkeypatch, call, errno.ENOSPC)
    with pytest.raises(OSError, match="injected by the test") as caught:
        LocalDisk().write(tmp_path / "f", pages(2))
    assert caught.value.errno == errno.ENOSPC


def test_writes_of_a_killed_process_survive(tmp_path: Path) -> None:
    disk = MemoryDisk()
    disk.make_directories(tmp_path)
    disk.write(tmp_path / "f", memoryview(b"never synced"))
    disk.replace(tmp_path / "f", tmp_path / "g")
    after = disk.reboot(None)
    assert after.names(tmp_path) == ["g"]
    assert after.read(tmp_path / "g", 0, 99) == b"never synced"
    assert after.reboot(random.Random(3)).read(tmp_path / "g", 0, 99) != b"never synced"


def test_disk_without_power_refuses_all_writes(tmp_path: Path) -> None:
    disk = MemoryDisk(fail_at=1)
    disk.make_directories(tmp_path)
    with pytest.raises(PowerCut):
        disk.write(tmp_path / "f", memoryview(b"half of it"))
    uses: tuple[Callable[[], None], ...] = (
        lambda: disk.write(tmp_path / "g", memoryview(b"")),
        lambda: disk.remove(tmp_path / "f"),
        lambda: disk.sync_directory(tmp_path),
    )
    for use in uses:
        with pytest.raises(PowerCut):
            use()
    assert disk.reboot(None).names(tmp_path) == ["f"]

"""Pinned blobs are kept, and a damaged list of pins is refused."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from pathlib import Path

import pytest

from p2ptrain.errors import StoreError, TryLater
from p2ptrain.store import LocalDisk, MemoryDisk, Pins, PowerCut, Store, digest_of

ROOT = Path("/store")
ONE, OTHER = digest_of(b"one"), digest_of(b"other")


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directories(ROOT)
    return disk


def test_adding_or_removing_a_pin_twice_reports_no_change(disk: MemoryDisk) -> None:
    pins = Pins(ROOT, disk)
    assert pins.load() == frozenset()
    assert [pins.change(add=ONE), pins.change(add=ONE), pins.change(add=OTHER)] == [
        True,
        False,
        True,
    ]
    assert Pins(ROOT, disk).load() == {ONE, OTHER}
    assert [pins.change(remove=ONE), pins.change(remove=ONE)] == [True, False]
    assert pins.load() == {OTHER}


def test_crash_leaves_the_old_pins_or_the_new_ones() -> None:
    seen = set()
    for cut_at, luck in itertools.product(range(1, 6), range(20)):
        disk = MemoryDisk()
        disk.make_directories(ROOT)
        Pins(ROOT, disk).change(add=ONE)
        disk.fail_at = len(disk.writes) + cut_at
        with suppress(PowerCut):
            Pins(ROOT, disk).change(add=OTHER)
        seen.add(Pins(ROOT, disk.reboot(random.Random(luck))).load())
    assert seen == {frozenset({ONE}), frozenset({ONE, OTHER})}


@pytest.mark.parametrize("content", [b"no digest\n", b"\xff\xfe", b"ab" * 31 + b"\n"])
def test_damaged_list_of_pins_is_refused(disk: MemoryDisk, content: bytes) -> None:
    disk.write(ROOT / "pins", memoryview(content))
    with pytest.raises(StoreError) as caught:
        Pins(ROOT, disk).load()
    assert caught.value.code == "STORE-PINS"


def test_number_of_pins_is_bounded(disk: MemoryDisk) -> None:
    pins = Pins(ROOT, disk, pins_max=1)
    pins.change(add=ONE)
    with pytest.raises(StoreError):
        pins.change(add=OTHER)
    assert pins.load() == {ONE}


def test_change_of_pins_in_use_by_another_process_raises_try_later(tmp_path: Path) -> None:
    pins = Pins(tmp_path, LocalDisk())
    with pins.held(), pytest.raises(TryLater) as caught:
        Pins(tmp_path, LocalDisk(), tries=2).change(add=ONE)
    assert caught.value.code == "PINS-BUSY"
    assert pins.change(add=ONE)


def test_collection_spares_pinned_blobs_with_all_their_chunks(disk: MemoryDisk) -> None:
    store = Store(ROOT, disk=disk, chunk_bytes=1024)
    kept, lost = (store.put_blob("update", [seed * 3000], {}) for seed in (b"k", b"l"))
    Pins(ROOT, disk).change(add=kept)
    store.collect_garbage([])  # spares both blobs, since they are new
    store.collect_garbage([])
    assert store.read_blob(kept) == b"k" * 3000
    assert not store.holds_blob(lost)
    store.lasting.change(remove=kept)
    store.collect_garbage([])
    assert not store.holds_blob(kept)

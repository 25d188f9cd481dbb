"""Crash safety of the store: the power fails, the disk is full, or the process is killed, at every
write of a *story*, a fixed sequence of operations on a store.

The story below takes snapshots, moves the head and collects garbage. One complete run counts the
writes. Further runs crash at each write, with several random outcomes for unsynced data.
In these runs the chunks of a blob are written one after the other. Other runs write chunks in
parallel, as a node does; there a seed chooses which thread continues at each write (see turns).
"""

from __future__ import annotations

import errno
import json
import random
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from p2ptrain.errors import StoreError, StoreFull
from p2ptrain.ids import Digest, RunId
from p2ptrain.store import Head, MemoryDisk, PowerCut, Store, digest_of
from p2ptrain.store.blob import looks_like_manifest
from tests.store.turns import AtOnce, TurnsDisk

ROOT = Path("/store")
RUN = RunId("cd" * 32)
STEPS = 3


def snapshot_bytes(step: int) -> bytes:
    """Return the contents of a snapshot of three chunks. The middle chunk is the same at every
    step.
    """
    return b"%d" % step * 1024 + b"same" * 256 + b"tail of %d" % step * 20


def put_step(store: Store, step: int, finished: list[int]) -> None:
    """Store one outer step as a node does: the update, a snapshot, then the head. Collect garbage.

    Once a step has been appended to `finished`, the head must never be at an earlier step.
    """
    update = store.put_blob("update", [b"update %d" % step * 150], {"step": step})
    snapshot = store.put_blob("snapshot", [snapshot_bytes(step)], {"step": step})
    store.put_head(Head(RUN, 2 * step, digest_of(b"%d" % step), step, snapshot, step))
    finished.append(step)
    store.collect_garbage([update])


def story(store: Store, finished: list[int]) -> None:
    """Run all steps after that of the head."""
    head = store.head()
    finished.append(head.step if head else 0)
    for step in range(finished[-1] + 1, STEPS + 1):
        put_step(store, step, finished)


def opened(disk: MemoryDisk) -> Store:
    lanes = disk.turns if isinstance(disk, TurnsDisk) else AtOnce
    return Store(ROOT, disk=disk, chunk_bytes=1024, lanes=lanes)


def whole_story() -> list[str]:
    disk = MemoryDisk()
    story(opened(disk), [])
    return disk.writes


WRITES = whole_story()
POINTS = range(1, len(WRITES) + 1)


def all_chunks(store: Store) -> list[Digest]:
    return [digest for fan in range(store.fans) for digest in store.chunks_in(fan)]


def check_whole(store: Store, step_at_least: int) -> int:
    """Check everything that must hold for a store after any fault. Return the step of its head."""
    head = store.head()
    if head is None:
        assert step_at_least == 0
        return 0
    assert head.step >= step_at_least
    assert head == Head(
        RUN, 2 * head.step, digest_of(b"%d" % head.step), head.step, head.snapshot, head.step
    )
    assert head.snapshot is not None
    assert store.holds_blob(head.snapshot)
    assert store.read_blob(head.snapshot) == snapshot_bytes(head.step)
    for digest in all_chunks(store):
        store.get_chunk(digest)  # a chunk exists under a name only if its contents match that name
    return head.step


def run_into(disk: MemoryDisk) -> int:
    """Run the story on this disk until the power fails. Return the last finished step."""
    finished = [0]
    with suppress(PowerCut):
        story(opened(disk), finished)
    return finished[-1]


def finish(disk: MemoryDisk, rng: random.Random) -> None:
    """Check that the next process continues from the head and finishes the story."""
    store = opened(disk)
    story(store, [])
    assert check_whole(store, STEPS) == STEPS
    store.close()
    assert check_whole(opened(disk.reboot(rng)), STEPS) == STEPS


def test_story_contains_every_kind_of_write() -> None:
    kinds = {" ".join(write.split()[:2]).split(" /")[0] for write in WRITES}
    assert kinds == {"write", "sync", "replace", "sync directory", "remove"}
    assert len(POINTS) > 60


@pytest.mark.parametrize("fail_at", POINTS)
def test_head_and_its_contents_survive_a_power_cut_at_any_write(fail_at: int) -> None:
    for seed in range(3):
        rng = random.Random(f"{fail_at}/{seed}") if seed else None
        disk = MemoryDisk(fail_at=fail_at)
        finished = run_into(disk)
        disk = disk.reboot(rng)
        check_whole(opened(disk), finished)
        finish(disk.reboot(None), random.Random(seed))


@pytest.mark.parametrize("fail_at", range(1, 40))
def test_manifest_never_exists_without_its_chunks(fail_at: int) -> None:
    for seed in range(10):
        disk = MemoryDisk(fail_at=fail_at)
        with suppress(PowerCut):
            opened(disk).put_blob("snapshot", [snapshot_bytes(1)], {})
        store = opened(disk.reboot(random.Random(seed)))
        for digest in all_chunks(store):
            if looks_like_manifest(store.get_chunk(digest)):
                assert store.read_blob(digest) == snapshot_bytes(1), f"seed {seed}"


def test_stories_with_three_crashes_each_lose_nothing() -> None:
    for seed in range(170):
        rng = random.Random(seed)
        disk, finished = MemoryDisk(), 0
        for _ in range(3):
            disk = TurnsDisk.of(disk, rng)
            disk.fail_at = rng.randint(1, len(WRITES))
            finished = max(finished, run_into(disk))
            disk = disk.reboot(rng if rng.random() < 0.7 else None)
            finished = max(finished, check_whole(opened(disk.reboot(None)), finished))
        finish(disk, rng)


def chunks_on_their_way(writes: list[str]) -> int:
    """Return the largest number of files that were in progress at the same time: written but not
    yet renamed.
    """
    on_their_way = most = 0
    for write in writes:
        on_their_way += write.startswith("write ") - write.startswith("replace ")
        most = max(most, on_their_way)
    return most


def test_seed_determines_how_parallel_writes_interleave() -> None:
    def story_of(seed: int) -> list[str]:
        disk = TurnsDisk.of(MemoryDisk(), random.Random(seed))
        opened(disk).put_blob("snapshot", [b"%d" % n * 1024 for n in range(8)], {})
        return [re.sub(r"/tmp/[0-9-]+", "", write) for write in disk.writes]

    stories = [story_of(seed) for seed in range(20)]
    assert stories == [story_of(seed) for seed in range(20)]
    assert len({tuple(each) for each in stories}) > 15
    assert max(map(chunks_on_their_way, stories)) > 3


@pytest.mark.parametrize("fail_at", POINTS)
@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_disk_error_at_any_write_is_reported_and_loses_nothing(fail_at: int, failure: int) -> None:
    disk = MemoryDisk(fail_at=fail_at, failure=failure)
    finished = [0]
    error = None
    try:
        story(opened(disk), finished)
    except StoreError as exc:
        error = exc
    assert isinstance(error, StoreFull) == (failure == errno.ENOSPC and error is not None)
    if error is None:
        assert WRITES[fail_at - 1].startswith("remove")  # only a failed removal is not reported
        return
    assert error.evidence
    assert error.do
    assert disk.names(ROOT / "tmp") == []
    check_whole(opened(disk.reboot(None)), finished[-1])
    check_whole(opened(disk.reboot(random.Random(fail_at))), finished[-1])
    finish(disk.reboot(None), random.Random(1))


def test_full_disk_during_parallel_writes_leaves_no_partial_files() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        disk = TurnsDisk.of(MemoryDisk(), rng)
        disk.fail_at, disk.failure = rng.randint(1, 80), errno.ENOSPC
        disk.forever = seed % 2 == 0
        finished = [0]
        with suppress(StoreFull):
            story(opened(disk), finished)
        left: list[str] = []
        with suppress(FileNotFoundError):
            left = disk.names(ROOT / "tmp")
        # A process that cannot write leaves its files in tmp until the next start.
        assert left == [] or disk.forever
        after = disk.reboot(rng if seed % 3 else None)
        check_whole(opened(after.reboot(None)), finished[-1])
        finish(after, rng)


def test_disk_that_stays_full_refuses_writes_and_still_serves() -> None:
    disk = MemoryDisk()
    store = opened(disk)
    put_step(store, 1, [])
    disk.fail_at, disk.failure, disk.forever = 1, errno.ENOSPC, True
    for _ in range(3):
        with pytest.raises(StoreFull) as caught:
            put_step(store, 2, [])
        assert caught.value.code == "DISK-LOW"
        assert check_whole(store, 1) == 1
    disk.fail_at = 0
    put_step(store, 2, [])
    assert check_whole(store, 2) == 2


@pytest.mark.parametrize("failure", [errno.EROFS, errno.EACCES])
def test_read_only_disk_has_its_own_error_code_and_can_still_be_read(failure: int) -> None:
    disk = MemoryDisk()
    store = opened(disk)
    put_step(store, 1, [])
    disk.fail_at, disk.failure, disk.forever = 1, failure, True
    with pytest.raises(StoreError) as caught:
        store.put_chunk(b"new")
    assert caught.value.code == "STORE-READONLY"
    assert check_whole(store, 1) == 1


def test_process_killed_at_any_write_leaves_a_valid_head(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.store.killed", str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["points"] == len(told["found"]) > 60
    assert all(was_killed for was_killed, _, _ in told["found"])
    assert {finished for _, finished, _ in told["found"]} == set(range(told["steps"] + 1))
    assert all(0 <= held - finished <= 1 for _, finished, held in told["found"])

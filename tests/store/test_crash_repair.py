"""Repairing a store, and rejecting its snapshot, are interrupted at every write."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from p2ptrain.errors import ChunkMissing
from p2ptrain.ids import Digest, RunId
from p2ptrain.node.outer_state.state_mismatch import disown_snapshot
from p2ptrain.store import Head, MemoryDisk, PowerCut, Store, Survey, digest_of
from tests.store.turns import AtOnce

ROOT = Path("/store")
RUN = RunId("cd" * 32)
SNAPSHOT = b"one" * 500 + b"two" * 500 + b"tail"
SEEDS = 8


def opened(disk: MemoryDisk) -> Store:
    return Store(ROOT, disk=disk, chunk_bytes=1024, lanes=AtOnce)


def stored() -> tuple[MemoryDisk, Digest]:
    """Return a disk that holds a store with a head, and the digest of the head's snapshot."""
    disk = MemoryDisk()
    store = opened(disk)
    digest = store.put_blob("snapshot", [SNAPSHOT], {})
    store.put_head(Head(RUN, 2, digest_of(b"entry"), 1, digest, 1))
    return disk.reboot(random.Random(0)), digest


def rot(disk: MemoryDisk, digest: Digest) -> dict[Digest, bytes]:
    """Damage two of the snapshot's chunks and its manifest. Return the intact bytes."""
    store = opened(disk)
    manifest = store.manifest(digest)
    victims = {each: store.get_chunk(each) for each in (manifest.chunks[1], manifest.chunks[2])}
    victims[digest] = store.get_chunk(digest)
    for victim in victims:
        disk.damage(store.chunk_path(victim), lambda data: b"\0" + data[1:])
    store.close()
    return victims


def repair(store: Store, victims: Mapping[Digest, bytes]) -> None:
    """Repair in the same way as a scrub and `store check --repair`: set chunks aside, store them
    again, sync the directories.
    """
    for victim in victims:
        store.examine(victim)
    for victim, sound in victims.items():
        if not store.has_chunk(victim):
            store.put_chunk(sound, expected=victim, durable=False)
    store.make_durable()


def count_of(work: Callable[[MemoryDisk, Digest], object]) -> int:
    """Return the number of writes that `work` makes after it has cleared the list of writes."""
    disk, digest = stored()
    work(disk, digest)
    return len(disk.writes)


def whole_repair(disk: MemoryDisk, digest: Digest) -> dict[Digest, bytes]:
    victims = rot(disk, digest)
    disk.writes.clear()
    repair(opened(disk), victims)
    return victims


@pytest.mark.parametrize("fail_at", range(1, count_of(whole_repair) + 1))
def test_interrupted_repair_loses_nothing_and_can_be_repeated(fail_at: int) -> None:
    for seed in range(SEEDS):
        disk, digest = stored()
        victims = rot(disk, digest)
        disk.writes.clear()
        disk.fail_at, done = fail_at, False
        with suppress(PowerCut):
            repair(opened(disk), victims)
            done = True
        assert not done
        disk = disk.reboot(random.Random(seed) if seed else None)
        rotten = {each for each, is_damaged in Survey(ROOT, disk).damaged() if is_damaged}
        store = opened(disk)
        head = store.head()
        assert head is not None
        assert (head.snapshot, head.step) == (digest, 1)
        assert rotten <= set(victims)
        for victim, sound in victims.items():
            assert victim in rotten or sound_or_gone(store, victim) in (sound, None)
        repair(store, victims)
        assert store.read_blob(digest) == SNAPSHOT
        after = disk.reboot(random.Random(seed))
        assert not any(is_damaged for _, is_damaged in Survey(ROOT, after).damaged())
        assert opened(after).read_blob(digest) == SNAPSHOT


def sound_or_gone(store: Store, digest: Digest) -> bytes | None:
    try:
        return store.get_chunk(digest)
    except ChunkMissing:
        return None


def whole_disowning(disk: MemoryDisk, digest: Digest) -> None:
    disk.writes.clear()
    disown_snapshot(opened(disk))


@pytest.mark.parametrize("fail_at", range(1, count_of(whole_disowning) + 2))
def test_interrupted_rejection_of_a_snapshot_is_all_or_nothing(fail_at: int) -> None:
    for seed in range(SEEDS):
        disk, digest = stored()
        disk.writes.clear()
        disk.fail_at, done = fail_at, False
        with suppress(PowerCut):
            disown_snapshot(opened(disk))
            done = True
        after = opened(disk.reboot(random.Random(seed) if seed else None))
        head = after.head()
        assert head is not None
        assert (head.run, head.height, head.head, head.step) == (RUN, 2, digest_of(b"entry"), 1)
        if (head.snapshot, head.snapshot_step) != (None, None):
            assert (head.snapshot, head.snapshot_step, done) == (digest, 1, False)
        assert after.read_blob(digest) == SNAPSHOT  # a rejected snapshot may prove valid
        disown_snapshot(after)
        rejected = after.head()
        assert rejected is not None
        assert rejected.snapshot is None


def test_rejection_is_interrupted_both_before_and_after_it_takes_effect() -> None:
    heads = set()
    for fail_at in range(1, count_of(whole_disowning) + 1):
        disk, _ = stored()
        disk.writes.clear()
        disk.fail_at = fail_at
        with suppress(PowerCut):
            disown_snapshot(opened(disk))
        head = opened(disk.reboot(None)).head()
        assert head is not None
        heads.add(head.snapshot_step)
    assert heads == {1, None}

"""A node replaces the chain of its branch with one that outranks it. Its disk is consistent after a
crash at any time."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from p2ptrain.node.consensus.adopt_chain import write_adopted_chain
from p2ptrain.store import Head, MemoryDisk, PowerCut, RecordLog
from tests.node.branched import Branched


@pytest.fixture
def place(tmp_path: Path) -> Branched:
    return Branched(tmp_path)


def test_other_chain_replaces_the_branch_and_votes_stay_stored(place: Branched) -> None:
    place.write(place.own[-1])
    assert place.state() == place.own_end
    write_adopted_chain(place.home, place.rejoin)
    assert place.state() == place.end
    assert list(RecordLog(place.home.votes)) == place.votes
    parted = place.shared[-1].entry
    assert place.head() == Head(place.run.id, parted.height, parted.digest, parted.value.step + 1)


def test_snapshot_from_before_the_branch_stays_usable(place: Branched) -> None:
    place.write(place.shared[-1])
    before = place.head()
    write_adopted_chain(place.home, place.rejoin)
    assert place.head() == before
    assert before.snapshot is not None


def prepared(place: Branched) -> MemoryDisk:
    disk = MemoryDisk()
    place.write(place.own[-1], disk)
    return disk.reboot(None)


def test_crash_never_leaves_a_branch_snapshot_on_the_other_chain(place: Branched) -> None:
    write = partial(write_adopted_chain, place.home, place.rejoin, frame_bytes=900)
    whole = prepared(place)
    write(whole)
    assert len(whole.writes) >= 6
    found = set()
    for fail_at in range(1, len(whole.writes) + 2):
        for seed in range(4):
            disk = prepared(place)
            disk.fail_at = fail_at
            with suppress(PowerCut):
                write(disk)
            after = disk.reboot(random.Random(seed) if seed else None)
            state, head = place.state(after), place.head(after)
            assert state in (place.own_end, place.end), f"write {fail_at}, seed {seed}"
            assert state == place.own_end or head.snapshot is None, f"write {fail_at}, seed {seed}"
            found.add((state.head, head.snapshot is None))
            write(after)
            assert place.state(after.reboot(random.Random(seed))) == place.end
    assert found == {
        (place.own_end.head, False),
        (place.own_end.head, True),
        (place.end.head, True),
    }

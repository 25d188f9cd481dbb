"""A node starts from the snapshot from which it can reach the ledger's newest state with the fewest
downloaded bytes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import SnapshotRef
from p2ptrain.node.outer_state.snapshot_choice import HeldStates, choose_start

GENESIS = SnapshotRef(0, Digest("0" * 64))
SNAPSHOT = SnapshotRef(40, Digest("1" * 64))
OWN = SnapshotRef(20, Digest("2" * 64))
SIZES = {"snapshot_bytes": 800, "update_bytes": 100}


def chosen(
    target: int,
    own: SnapshotRef | None,
    others: list[SnapshotRef],
    steps: Iterable[int] = (),
    first_step: int = 0,
) -> SnapshotRef | None:
    """Return the start that is chosen among `own` and `others` if the store contains `own` and the
    updates of the outer steps `steps`."""
    here = HeldStates({own.digest} if own else set(), frozenset(steps))
    starts = [*([own] if own else []), *others]
    return choose_start(
        target_step=target, starts=starts, here=here, first_step=first_step, **SIZES
    )


@pytest.mark.parametrize(
    ("target", "own", "others", "best"),
    [
        (0, None, [GENESIS], GENESIS),
        (45, None, [GENESIS, SNAPSHOT], SNAPSHOT),
        (45, OWN, [GENESIS, SNAPSHOT], SNAPSHOT),
        (45, SnapshotRef(38, OWN.digest), [GENESIS, SNAPSHOT], SnapshotRef(38, OWN.digest)),
        (30, OWN, [GENESIS, SNAPSHOT], OWN),
        # Both need 900 bytes, so the newer one is chosen.
        (41, SnapshotRef(32, OWN.digest), [SNAPSHOT], SNAPSHOT),
        (5, None, [GENESIS], GENESIS),
        (10, OWN, [GENESIS], GENESIS),  # Our snapshot is newer than this ledger.
    ],
)
def test_start_with_the_fewest_downloaded_bytes_is_chosen(
    target: int, own: SnapshotRef | None, others: list[SnapshotRef], best: SnapshotRef
) -> None:
    assert chosen(target, own, others) == best


@pytest.mark.parametrize(
    ("steps", "best"),
    [
        (range(20, 45), OWN),  # no update is missing
        (range(20, 33), OWN),  # 1200 bytes are cheaper than 1300
        (range(20, 31), SNAPSHOT),
        (range(40, 45), SNAPSHOT),
    ],
)
def test_updates_in_the_store_do_not_count_as_downloads(steps: range, best: SnapshotRef) -> None:
    assert chosen(45, OWN, [GENESIS, SNAPSHOT], steps) == best


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.sets(st.integers(0, 99)))
def test_no_reachable_start_needs_fewer_bytes_than_the_chosen_one(
    target: int, own_step: int, snapshot_step: int, steps: set[int]
) -> None:
    own, snapshot = SnapshotRef(own_step, OWN.digest), SnapshotRef(snapshot_step, SNAPSHOT.digest)
    best = chosen(target, own, [GENESIS, snapshot], steps)
    assert best is not None
    assert best.step <= target
    bill = {
        start: (0 if start is own else 800) + 100 * len(set(range(start.step, target)) - steps)
        for start in (own, snapshot, GENESIS)
    }
    assert bill[best] == min(cost for start, cost in bill.items() if start.step <= target)


def test_start_is_not_before_the_beginning_of_a_pruned_ledger() -> None:
    assert chosen(45, OWN, [GENESIS, SNAPSHOT], first_step=21) == SNAPSHOT
    assert chosen(45, OWN, [GENESIS, SNAPSHOT], first_step=20) == SNAPSHOT
    assert chosen(45, OWN, [GENESIS], first_step=20) == OWN
    assert chosen(45, OWN, [GENESIS], first_step=21) is None

"""The next orders for a trainer follow from its earlier orders and from what the members agreed on:
the outer step, and the node's lease (the blocks that it may train on)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.sync.trainer_orders import (
    AheadOrder,
    Blocks,
    LeasePace,
    LoadOrder,
    LocalWork,
    MergeOrder,
    Order,
    RebaseOrder,
    TrainerProgress,
    TrainOrder,
    next_orders,
    progress_after,
)

B, C, D = (1, 2, 3), (7, 8, 9), (11, 12, 13)
PLAIN, LATE, ASYNC = LeasePace(3), LeasePace(3, 2), LeasePace(3, 3)
READY = TrainerProgress(4, B, 0, 3)
"""The progress of a trainer that has reported the blocks B as ready at outer step 4."""

AHEAD = TrainerProgress(4, B + C[:2], 0, 3, True)


@pytest.mark.parametrize(
    ("progress", "step", "lease", "expected"),
    [
        (None, 4, B, [LoadOrder(4), TrainOrder(4, B)]),
        (None, 4, (), []),
        (TrainerProgress(4, B), 4, B, []),
        (READY, 4, B, []),
        (READY, 5, B, [RebaseOrder(5)]),
        (READY, 5, B + C, [RebaseOrder(5), TrainOrder(5, C)]),
        (TrainerProgress(4, B), 5, B + C, [RebaseOrder(5), TrainOrder(5, C)]),
        (READY, 5, C, [MergeOrder(5), TrainOrder(5, C)]),
        (TrainerProgress(4, B), 5, C, [LoadOrder(5), TrainOrder(5, C)]),
        (READY, 4, C, [LoadOrder(4), TrainOrder(4, C)]),
        (READY, 5, (), []),
        (READY, 9, B, [RebaseOrder(9)]),
        (READY, 4, B + C, [TrainOrder(4, C)]),
    ],
)
def test_orders_without_overlap_match_the_table_in_trainer_orders(
    progress: TrainerProgress | None, step: int, lease: Blocks, expected: list[Order]
) -> None:
    assert next_orders(progress, step, lease, PLAIN) == expected


def test_work_is_not_merged_if_the_average_was_made_without_it() -> None:
    assert next_orders(READY, 5, C, PLAIN, taken=False) == [LoadOrder(5), TrainOrder(5, C)]


@pytest.mark.parametrize(
    ("progress", "step", "lease", "expected"),
    [
        (None, 4, B + C, [LoadOrder(4), TrainOrder(4, B)]),
        (TrainerProgress(4, B), 4, B + C, []),
        (READY, 4, B + C, [AheadOrder(4, C[:2])]),
        (READY, 4, B, []),
        (AHEAD, 4, B + C, []),
        (AHEAD, 5, C + D, [MergeOrder(5), TrainOrder(5, C[2:])]),
        (AHEAD, 5, B + C, [RebaseOrder(5), TrainOrder(5, C[2:])]),
        (AHEAD, 5, B + C + D, [RebaseOrder(5), TrainOrder(5, C[2:])]),
        (AHEAD, 5, B + C[:2], [RebaseOrder(5), TrainOrder(5, ())]),
        (AHEAD, 5, D, [LoadOrder(5), TrainOrder(5, D)]),
        (TrainerProgress(4, B), 5, B + C, [RebaseOrder(5)]),
        (TrainerProgress(5, B + C, 3, 6), 5, B + C + D, [AheadOrder(5, D[:2])]),
        (TrainerProgress(5, B + C, 3, 6), 6, D, [MergeOrder(6), TrainOrder(6, D)]),
    ],
)
def test_orders_with_overlap_begin_the_next_step_while_the_work_is_averaged(
    progress: TrainerProgress | None, step: int, lease: Blocks, expected: list[Order]
) -> None:
    assert next_orders(progress, step, lease, LATE) == expected


def test_trainer_with_more_blocks_than_an_amended_step_needs_must_finish_them() -> None:
    """A node was left out before it was ready, and then the steps became shorter. In an earlier
    version it waited forever, since it had been given more blocks than the new step needs."""
    progress = TrainerProgress(4, B)
    (order,) = next_orders(progress, 5, B + C[:1], LeasePace(1, 1))
    assert order == RebaseOrder(5)
    assert progress_after(progress, order).due(B + C[:1], LeasePace(1, 1)) == B


def test_trainer_that_is_one_whole_step_ahead_gets_no_more_blocks() -> None:
    progress = TrainerProgress(4, B + C, 0, 3, True)
    assert next_orders(progress, 5, C + D, ASYNC) == [MergeOrder(5), TrainOrder(5, ())]


@pytest.mark.parametrize(
    ("pace", "lease", "stands"),
    [
        (PLAIN, B, True),
        (PLAIN, B + C, False),
        (LATE, B + C, True),
        (LATE, C + D, False),
    ],
)
def test_offered_work_counts_if_it_covers_the_blocks_of_the_current_step(
    pace: LeasePace, lease: Blocks, stands: bool
) -> None:
    assert LocalWork(4, B, 30).stands_for(4, lease, pace) is stands
    assert not LocalWork(3, B, 30).stands_for(4, lease, pace)


leases = st.lists(st.integers(0, 9), max_size=6, unique=True).map(tuple)
paces = st.builds(LeasePace, st.integers(1, 3), st.integers(0, 3))
steps = st.integers(0, 3)


@st.composite
def progresses(draw: st.DrawFn) -> TrainerProgress:
    blocks = draw(leases)
    offered = draw(st.integers(0, len(blocks)))
    carried = draw(st.integers(0, offered))
    return TrainerProgress(draw(steps), blocks, carried, offered, 0 < offered < len(blocks))


@given(st.none() | progresses(), steps, leases, paces, st.booleans())
def test_orders_that_were_obeyed_are_not_followed_by_more_orders(
    progress: TrainerProgress | None, step: int, lease: Blocks, pace: LeasePace, taken: bool
) -> None:
    for order in next_orders(progress, step, lease, pace, taken=taken):
        progress = progress_after(progress, order)
    if lease:
        assert progress is not None
        assert progress.step == step
        assert progress.blocks == lease[: len(progress.blocks)]
    assert next_orders(progress, step, lease, pace, taken=taken) == []


@given(progresses(), steps, leases, paces)
def test_work_on_blocks_that_are_still_in_the_lease_is_never_dropped(
    progress: TrainerProgress, step: int, lease: Blocks, pace: LeasePace
) -> None:
    kept = lease[: len(progress.blocks)] == progress.blocks
    orders = next_orders(progress, step, lease, pace)
    assert not (kept and [each for each in orders if isinstance(each, LoadOrder | MergeOrder)])

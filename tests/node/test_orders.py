"""What a trainer is told follows from what is agreed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.node.orders import Desk, LoadOrder, RebaseOrder, TrainOrder, after, next_orders

B, C = (1, 2, 3), (7, 8)


@pytest.mark.parametrize(
    ("desk", "step", "lease", "expected"),
    [
        (None, 4, B, [LoadOrder(4), TrainOrder(4, B)]),
        (None, 4, (), []),
        (Desk(4, B), 4, B, []),
        (Desk(4, B), 5, B, [RebaseOrder(5)]),
        (Desk(4, B), 5, B + C, [RebaseOrder(5), TrainOrder(5, C)]),
        (Desk(4, B), 5, C, [LoadOrder(5), TrainOrder(5, C)]),
        (Desk(4, B), 4, C, [LoadOrder(4), TrainOrder(4, C)]),
        (Desk(4, B), 5, (), []),
        (Desk(4, B), 9, B, [RebaseOrder(9)]),
    ],
)
def test_each_row_of_the_table_of_orders(desk, step, lease, expected):
    assert next_orders(desk, step, lease) == expected


leases = st.lists(st.integers(0, 9), max_size=6, unique=True).map(tuple)


@given(st.none() | st.builds(Desk, st.integers(0, 3), leases), st.integers(0, 3), leases)
def test_a_trainer_that_obeyed_needs_no_further_orders(desk, step, lease):
    for order in next_orders(desk, step, lease):
        desk = after(desk, order)
    if lease:
        assert desk == Desk(step, lease)
    assert next_orders(desk, step, lease) == []


@given(st.builds(Desk, st.integers(0, 3), leases), st.integers(0, 3), leases)
def test_work_on_blocks_that_are_still_ours_is_never_dropped(desk, step, lease):
    kept = lease[: len(desk.blocks)] == desk.blocks
    loads = [order for order in next_orders(desk, step, lease) if isinstance(order, LoadOrder)]
    assert not (kept and loads)

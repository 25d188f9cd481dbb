"""One bell for everybody, and work that is given up when it has lost its point."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from p2ptrain.errors import P2PTrainError
from p2ptrain.node.state.changes import Changes


async def test_everybody_who_waits_is_woken_by_one_ring() -> None:
    changes, woken = Changes(), []

    async def wait(name: str) -> None:
        await changes.wait()
        woken.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "a")
        nursery.start_soon(wait, "b")
        await trio.testing.wait_all_tasks_blocked()
        changes.ring()
    assert sorted(woken) == ["a", "b"]


async def test_a_ring_before_the_wait_is_not_heard_but_time_is() -> None:
    changes = Changes()
    changes.ring()
    with trio.fail_after(20.0):
        await changes.wait(at_most_s=0.01)


async def test_work_that_ends_is_done() -> None:
    done = []

    async def work() -> None:
        await trio.lowlevel.checkpoint()
        done.append(True)

    assert await Changes().so_long_as(lambda: True, work)
    assert done == [True]


async def test_work_is_given_up_when_it_has_lost_its_point() -> None:
    changes, matters = Changes(), [True]

    async def lose_its_point() -> None:
        await trio.testing.wait_all_tasks_blocked()
        changes.ring()
        await trio.testing.wait_all_tasks_blocked()
        matters.clear()
        changes.ring()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose_its_point)
        assert not await changes.so_long_as(lambda: bool(matters), trio.sleep_forever)


async def test_an_error_of_the_work_comes_out_as_itself() -> None:
    async def work() -> None:
        raise P2PTrainError("no")

    with pytest.raises(P2PTrainError, match="no"):
        await Changes().so_long_as(lambda: True, work)


async def test_cancelling_it_cancels_the_work() -> None:
    with trio.move_on_after(0.01) as scope:
        await Changes().so_long_as(lambda: True, trio.sleep_forever)
    assert scope.cancelled_caught

"""A signal that wakes all waiting tasks, and work that is cancelled when it is no longer needed."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from p2ptrain.errors import P2PTrainError
from p2ptrain.node.state.changes import Changes


async def test_one_signal_wakes_every_waiting_task() -> None:
    changes, woken = Changes(), []

    async def wait(name: str) -> None:
        await changes.wait()
        woken.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "a")
        nursery.start_soon(wait, "b")
        await trio.testing.wait_all_tasks_blocked()
        changes.notify_all()
    assert sorted(woken) == ["a", "b"]


async def test_signal_before_the_wait_is_missed_but_the_time_limit_works() -> None:
    changes = Changes()
    changes.notify_all()
    began = trio.current_time()
    with trio.fail_after(20.0):
        await changes.wait(at_most_s=0.01)
    assert trio.current_time() - began >= 0.01


async def test_finished_work_is_reported_as_done() -> None:
    done = []

    async def work() -> None:
        await trio.lowlevel.checkpoint()
        done.append(True)

    assert await Changes().run_while(lambda: True, work)
    assert done == [True]


async def test_work_that_is_no_longer_needed_is_cancelled() -> None:
    changes, matters = Changes(), [True]

    async def lose_its_point() -> None:
        await trio.testing.wait_all_tasks_blocked()
        changes.notify_all()
        await trio.testing.wait_all_tasks_blocked()
        matters.clear()
        changes.notify_all()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose_its_point)
        assert not await changes.run_while(lambda: bool(matters), trio.sleep_forever)


async def test_error_of_the_work_is_raised_unchanged() -> None:
    async def work() -> None:
        raise P2PTrainError("no")

    with pytest.raises(P2PTrainError, match="no"):
        await Changes().run_while(lambda: True, work)


async def test_cancelling_the_caller_cancels_the_work() -> None:
    with trio.move_on_after(0.01) as scope:
        await Changes().run_while(lambda: True, trio.sleep_forever)
    assert scope.cancelled_caught

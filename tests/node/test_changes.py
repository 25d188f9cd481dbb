"""`Changes` wakes all waiting tasks, and cancels work that is no longer needed."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from p2ptrain.errors import P2PTrainError
from p2ptrain.node.state.changes import CALM_S, Changes


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


async def test_wait_ignores_earlier_signals_and_ends_after_its_time_limit() -> None:
    changes = Changes()
    changes.notify_all()
    began = trio.current_time()
    with trio.fail_after(20.0):
        await changes.wait(at_most_s=0.01)
    assert trio.current_time() - began >= 0.01


async def test_wait_returns_at_once_if_something_changed_since_the_check() -> None:
    changes = Changes()
    seen = changes.count
    changes.notify_all()
    with trio.fail_after(20.0):
        await changes.wait(since=seen)
    with trio.move_on_after(0.01) as waited:
        await changes.wait(since=changes.count)
    assert waited.cancelled_caught


async def test_run_while_returns_true_if_the_work_was_finished() -> None:
    done = []

    async def work() -> None:
        await trio.lowlevel.checkpoint()
        done.append(True)

    assert await Changes().run_while(lambda: True, work)
    assert done == [True]


async def test_run_while_cancels_work_that_is_no_longer_needed() -> None:
    changes, needed = Changes(), [True]

    async def stop_needing_it() -> None:
        await trio.testing.wait_all_tasks_blocked()
        changes.notify_all()
        await trio.testing.wait_all_tasks_blocked()
        needed.clear()
        changes.notify_all()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_needing_it)
        assert not await changes.run_while(lambda: bool(needed), trio.sleep_forever)


async def test_run_while_raises_the_error_of_the_work_unchanged() -> None:
    async def work() -> None:
        raise P2PTrainError("no")

    with pytest.raises(P2PTrainError, match="no"):
        await Changes().run_while(lambda: True, work)


async def test_cancelling_the_caller_cancels_the_work() -> None:
    with trio.move_on_after(0.01) as scope:
        await Changes().run_while(lambda: True, trio.sleep_forever)
    assert scope.cancelled_caught


async def test_calm_wait_returns_late_and_misses_no_change(mock_clock: MockClock) -> None:
    changes, woken = Changes(), list[float]()

    async def watch() -> None:
        for _ in range(2):
            await changes.wait_calmly()
            woken.append(trio.current_time())

    async def let_pass(seconds: float) -> None:
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        changes.notify_all()
        changes.notify_all()
        await let_pass(CALM_S / 2)
        assert woken == []
        await let_pass(CALM_S / 2)
        assert woken == [CALM_S], "two changes, one wake-up"
        await let_pass(10 * CALM_S)
        changes.notify_all()
    assert woken == [CALM_S, 11 * CALM_S], "a change after a pause wakes it at once"


async def test_calm_wait_ends_after_its_time_limit(autojump_clock: MockClock) -> None:
    changes = Changes()
    await changes.wait_calmly(at_most_s=CALM_S / 2)
    await changes.wait_calmly(at_most_s=2 * CALM_S)
    assert trio.current_time() == 2.5 * CALM_S

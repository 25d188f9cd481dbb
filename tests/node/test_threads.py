"""`in_thread` runs blocking work in a thread. If the task is cancelled, it stops the work and waits
until the thread has ended."""

from __future__ import annotations

import threading

import pytest
import trio

from p2ptrain.node.state.threads import in_thread


async def test_result_of_blocking_work_is_returned_without_stopping_it() -> None:
    stopped = threading.Event()
    assert await in_thread(lambda: 42, stop=stopped.set) == 42
    assert not stopped.is_set()


async def test_error_of_blocking_work_is_raised_unchanged() -> None:
    def work() -> None:
        raise KeyError("from the thread")

    with pytest.raises(KeyError, match="from the thread"):
        await in_thread(work, stop=lambda: None)


async def test_cancelling_the_task_stops_the_work_and_waits_for_it() -> None:
    stop, ended = threading.Event(), threading.Event()

    def work() -> None:
        stop.wait()
        ended.set()

    with trio.move_on_after(0.01) as scope:
        await in_thread(work, stop=stop.set)
    assert ended.is_set()
    assert scope.cancelled_caught

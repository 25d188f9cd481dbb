"""Blocking work ends when its task is cancelled, and not a moment before it has really ended."""

from __future__ import annotations

import threading

import pytest
import trio

from p2ptrain.node.threads import in_thread


def test_the_result_comes_back_and_stop_is_not_called():
    stopped = threading.Event()

    async def main() -> int:
        return await in_thread(lambda: 42, stop=stopped.set)

    assert trio.run(main) == 42
    assert not stopped.is_set()


def test_an_error_comes_back_as_itself():
    def work() -> None:
        raise KeyError("from the thread")

    async def main() -> None:
        await in_thread(work, stop=lambda: None)

    with pytest.raises(KeyError):
        trio.run(main)


def test_cancelling_the_task_stops_the_work_and_waits_for_it():
    stop, ended = threading.Event(), threading.Event()

    def work() -> None:
        stop.wait()
        ended.set()

    async def main() -> bool:
        with trio.move_on_after(0.01) as scope:
            await in_thread(work, stop=stop.set)
        assert ended.is_set()
        return scope.cancelled_caught

    assert trio.run(main) is True

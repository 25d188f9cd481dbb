"""Blocking work in a thread, ended by closing what it blocks on.

A thread cannot be cancelled, and one that is abandoned keeps its sockets and its view of θ. So
every piece of blocking work here comes with a `stop` that makes it return: we call it when the
task is cancelled, and wait for the thread all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import outcome
import trio

Result = TypeVar("Result")


async def in_thread(
    work: Callable[[], Result],
    *,
    stop: Callable[[], None],
    limiter: trio.CapacityLimiter | None = None,
) -> Result:
    """The result of `work`, run in a thread: one of those that all share, unless of `limiter`'s.

    When this task is cancelled, `stop` is called from the event loop and `work` is awaited; `stop`
    must not block, and must make `work` return soon, with whatever result or error.
    """
    finished = False

    async def stop_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not finished:
                stop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_when_cancelled)
        # Captured, or the nursery would wrap the error in a group.
        captured = partial(outcome.capture, work)
        outcome_of_work = await trio.to_thread.run_sync(captured, limiter=limiter)
        finished = True
        nursery.cancel_scope.cancel()
    return outcome_of_work.unwrap()

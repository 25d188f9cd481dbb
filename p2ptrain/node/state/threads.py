"""Blocking work in threads: which limiter each kind uses, and how such work is stopped.

| work | limiter | threads |
|---|---|---|
| durable writes: votes, entries, evidence, start counts, the store's head | `durably`, here | 4 |
| reads of the ledger's task between events | `durably`, here | the same 4 |
| connecting the neighbours of a ring | `reduce_links.THREADS_MAX`, `edge.WAITING` | see there |
| hellos on kept connections | `kept_links.ACCEPTING` | 64 |
| other connections; hole punching | `connecting/opening`, `punching/` | see there |
| DNS lookups: names from our user, from members, from others | `net/names` | 4, 8, 2 |
| everything else: reading, hashing, kernels, snapshots, trainers | trio's own | 40 |

A vote must not wait for anything that a peer can slow down. Therefore durable writes do not share
threads with other work.

A thread cannot be cancelled, and an abandoned thread keeps its sockets and its view of θ. So
`in_thread` takes a function `stop` that makes the work return. When the task is cancelled, it calls
`stop` and then waits for the thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import outcome
import trio

Result = TypeVar("Result")

DURABLE_THREADS = 4
"""Number of threads for durable writes: one for the ledger's task, which makes one write at a time,
and three for the other tasks."""
_DURABLE = trio.CapacityLimiter(DURABLE_THREADS)


SWITCH_INTERVAL_S = 0.0005
"""Maximum time for which one thread keeps the interpreter while another thread waits for it. A
reduce returns to the interpreter for each frame. With Python's default of 5 ms, strangers that kept
the event loop busy lengthened each outer step of a small model by a tenth. The kernels run without
the interpreter, so this does not slow them down."""


def switch_threads_often() -> None:
    """Make this process switch threads more often. Call this once, at the start."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


async def durably(write: Callable[..., Result], *args: object) -> Result:
    """Run `write(*args)`, which must be durable before the node continues, and return its result.

    The threads are reserved for such writes, and for reads of the ledger's task, since votes wait
    for both."""
    return await trio.to_thread.run_sync(write, *args, limiter=_DURABLE)


async def in_thread(
    work: Callable[[], Result],
    *,
    stop: Callable[[], None],
    limiter: trio.CapacityLimiter | None = None,
) -> Result:
    """Run `work` in a thread and return its result. Without `limiter`, use trio's shared limiter.

    When this task is cancelled, call `stop` from the event loop and wait for `work`. `stop` must
    not block, and must make `work` return soon, with any result or error."""
    finished = False

    async def stop_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not finished:
                stop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_when_cancelled)
        # Capture the error: otherwise the nursery would wrap it in a group.
        captured = partial(outcome.capture, work)
        outcome_of_work = await trio.to_thread.run_sync(captured, limiter=limiter)
        finished = True
        nursery.cancel_scope.cancel()
    return outcome_of_work.unwrap()

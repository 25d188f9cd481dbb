"""Write many chunks to the disk at once, each in its own thread.

A chunk has no name before its bytes are synced, and a sync takes as long as the disk takes to
answer, however little was written. With one chunk at a time a disk is idle most of the time. Eight
at a time keep it busy, and a file system combines syncs that are requested together. The store's
order for each chunk (write beside, sync, rename) holds within its lane. Nothing that refers to the
chunks is written before all lanes have ended.

Each lane has one buffer, into which the bytes are copied first. So the owner of the bytes need not
wait for the disk (see `state.frozen`). Buffers begin at a page, so the disk can take them as they
are, around the page cache (see `disk`).

Work that can wait, such as a snapshot, is written by threads with a low priority. At equal
priority, a snapshot took half a core from the inner steps for as long as it lasted. These threads
also pause; see `idle_throttle`.

The module does not know what is done with a chunk; `put` does.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from p2ptrain.ids import Digest
from p2ptrain.store.blob import Buffer
from p2ptrain.store.idle_throttle import IdleThrottle

LANES = 8
"""Eight chunks of 4 MiB use 32 MiB of memory. With four, the disk was idle between two syncs; with
sixteen, it wrote a tenth more. See docs/results/state.md."""

Result = TypeVar("Result")

Fill = Callable[[memoryview], int]
"""Fills a view with the next bytes; returns how many. Fewer than fit means the end."""

Lanes = Callable[[], Executor]
"""Returns the executor for the lanes of one blob. Its `with` block must wait for all its tasks."""

STAND_BACK = 19
"""Nice value. Of two threads that compete for a core, the one nicer by this gets a 68th of it."""


def stand_back() -> None:
    """Give this thread a low priority."""
    nice = min(STAND_BACK, os.getpriority(os.PRIO_PROCESS, os.getpid()) + STAND_BACK)
    # Linux accepts a thread's id here. A sandbox may forbid the call, which costs only speed.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


threads: Lanes = partial(ThreadPoolExecutor, LANES, "store")
patient_threads: Lanes = partial(ThreadPoolExecutor, LANES, "store-patient", stand_back)


def filling(parts: Iterable[Buffer]) -> Fill:
    """Return a Fill for the bytes of `parts` in order. Each part is released after it was read."""
    left, rest = iter(parts), memoryview(b"")

    def fill(view: memoryview) -> int:
        nonlocal rest
        filled = 0
        while filled < len(view):
            if not rest:
                part = next(left, None)
                if part is None:
                    break
                rest = memoryview(part).cast("B")
            taken = min(len(view) - filled, len(rest))
            view[filled : filled + taken] = rest[:taken]
            rest = rest[taken:]
            filled += taken
        return filled

    return fill


def _counted(
    throttle: IdleThrottle, work: Callable[[memoryview], Result]
) -> Callable[[memoryview], Result]:
    return lambda view: throttle.run_counted(partial(work, view))


def put_all(
    fill: Fill,
    chunk_bytes: int,
    put: Callable[[memoryview], Digest],
    lanes: Lanes,
    throttle: IdleThrottle | None = None,
) -> tuple[list[Digest], int]:
    """Call `put` with each chunk; return its results in order, and the total number of bytes.

    With `throttle`, pause between two chunks while all cores are busy.

    Raises the error of `fill` or of the first failed `put`, after all started calls have ended.
    """
    if throttle is not None:
        fill, put = _counted(throttle, fill), _counted(throttle, put)
    chunks: list[Digest] = []
    under_way: deque[tuple[Future[Digest], memoryview]] = deque()
    size, count = 0, chunk_bytes
    with lanes() as executor:
        while count == chunk_bytes:
            if len(under_way) < LANES:
                buffer = memoryview(mmap.mmap(-1, chunk_bytes))
            else:
                first, buffer = under_way.popleft()
                chunks.append(first.result())
            if throttle is not None:
                throttle.rest()
                # Only after a buffer is free: no bytes are held while waiting for the disk.
            count = fill(buffer)
            if count:
                under_way.append((executor.submit(put, buffer[:count]), buffer))
                size += count
        chunks += [lane.result() for lane, _ in under_way]
    return chunks, size

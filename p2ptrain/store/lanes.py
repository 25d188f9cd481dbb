"""Write many chunks to the disk at once, each in its own thread.

A chunk gets its name only after its bytes are synced, and a sync has the latency of the disk, no
matter how little was written. With one chunk at a time, a disk is idle most of the time. Eight at a
time keep it busy, and a file system combines syncs that are requested together. Each lane (a thread
and its buffer) writes a chunk in the store's order: temporary file, sync, rename. References to the
chunks are written only after all lanes have ended.

The bytes are first copied into a lane's buffer. So a thread that wants to change them does not have
to wait for the disk (see `state.frozen`). Buffers are page-aligned, so they can be written directly
to the disk, bypassing the page cache, without a copy (see `disk`).

Background work, such as a snapshot, is written by threads with a low priority. At normal priority,
writing a snapshot took half a core from the inner steps. These threads also pause; see
`idle_throttle`.

The caller's `put` decides what to do with a chunk.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from p2ptrain.ids import Digest
from p2ptrain.store.blob import Fill
from p2ptrain.store.idle_throttle import IdleThrottle

LANES = 8
"""Number of chunks that are written at once. Eight chunks of 4 MiB use 32 MiB of memory. With four,
the disk was idle between two syncs; with sixteen, it wrote a tenth more. See
docs/results/state.md."""

Lanes = Callable[[], Executor]
"""Returns the executor for the lanes of one blob. Its `with` block waits for all tasks."""

STAND_BACK = 19
"""Nice value of a background thread. If such a thread competes for a core with a thread of normal
priority, it gets 1/68 of the core."""


def stand_back() -> None:
    """Give this thread a low priority."""
    nice = min(STAND_BACK, os.getpriority(os.PRIO_PROCESS, os.getpid()) + STAND_BACK)
    # Linux accepts a thread id here. A sandbox may forbid the call; that costs only speed.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


threads: Lanes = partial(ThreadPoolExecutor, LANES, "store")
patient_threads: Lanes = partial(ThreadPoolExecutor, LANES, "store-patient", stand_back)


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
        fill, put = throttle.counted(fill), throttle.counted(put)
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
            # Fill only when a buffer is free, so that the owner of the bytes never waits for the
            # disk.
            count = fill(buffer)
            if count:
                under_way.append((executor.submit(put, buffer[:count]), buffer))
                size += count
        chunks += [lane.result() for lane, _ in under_way]
    return chunks, size

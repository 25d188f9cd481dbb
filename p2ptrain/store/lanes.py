"""Many chunks on their way to the disk at once, each in a thread of its own.

A chunk has no name before its bytes are synced, and a sync takes as long as the disk takes to
answer, however little was written. One chunk after the other, a disk waits most of the time; eight
beside each other keep it busy, and a file system syncs together what is asked for together. What
the store promises of each chunk (write beside, sync, rename) holds within its lane, and nothing
that refers to the chunks is written before all lanes have ended.

Each lane has one buffer, into which the bytes are copied first: so whoever owns them need not wait
for the disk (see `state.frozen`), and since buffers begin at a page, the disk can take them as they
are, around the page cache (see `disk`).

What can wait, as a snapshot can, is written by threads that stand back: where the cores are all at
inner steps, a snapshot at equal rights took half of one from them for as long as it took. And they
take time off, see `leisure`.

It does not know what is done with a chunk; `put` does.
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
from p2ptrain.store.idle_throttle import Leisure

LANES = 8
"""Eight chunks of 4 MiB are 32 MiB of memory. With four the disk idled between two syncs, sixteen
brought a tenth more; see docs/results/state.md."""

Result = TypeVar("Result")

Fill = Callable[[memoryview], int]
"""Fills a view with the next bytes; returns how many, which are fewer than fit only at the end."""

Lanes = Callable[[], Executor]
"""What runs the lanes of one blob. Its `with` block must not end before all that it was given."""

STAND_BACK = 19
"""Of two threads that want one core, the one so much nicer gets a 68th of it."""


def stand_back() -> None:
    """This thread leaves the processor to whoever else wants it."""
    nice = min(STAND_BACK, os.getpriority(os.PRIO_PROCESS, os.getpid()) + STAND_BACK)
    # Linux takes a thread's id for a process's; a sandbox may not let us, which costs only speed.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


threads: Lanes = partial(ThreadPoolExecutor, LANES, "store")
patient_threads: Lanes = partial(ThreadPoolExecutor, LANES, "store-patient", stand_back)


def filling(parts: Iterable[Buffer]) -> Fill:
    """The bytes of `parts`, one after the other. Each part is let go of when it has been read."""
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
    leisure: Leisure, work: Callable[[memoryview], Result]
) -> Callable[[memoryview], Result]:
    return lambda view: leisure.count(partial(work, view))


def put_all(
    fill: Fill,
    chunk_bytes: int,
    put: Callable[[memoryview], Digest],
    lanes: Lanes,
    leisure: Leisure | None = None,
) -> tuple[list[Digest], int]:
    """Have `put` called with each chunk; returns what it returned, in order, and the bytes in all.

    With `leisure` it rests between two chunks where all cores are busy.

    Raises what `fill` or the first `put` to fail raised, after all that had begun have ended.
    """
    if leisure is not None:
        fill, put = _counted(leisure, fill), _counted(leisure, put)
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
            if leisure is not None:
                leisure.rest()
            # Only now that there is a buffer: bytes are never held while the disk is waited for.
            count = fill(buffer)
            if count:
                under_way.append((executor.submit(put, buffer[:count]), buffer))
                size += count
        chunks += [lane.result() for lane, _ in under_way]
    return chunks, size

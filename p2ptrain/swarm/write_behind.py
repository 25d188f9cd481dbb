"""Chunks that have come, on their way to the disk while their lanes read on.

A chunk has no name in the store before its bytes are synced. A lane that waited for that would stop
reading, and once the buffers of TCP are full its line stands still: at 1 Gbit/s a chunk takes 34 ms
to come and, on a good disk, about as long to be synced. So a lane hands a full buffer over, takes
an empty one, and waits only when `STORING_MAX` chunks are on their way already: then the disk is
what limits.

Buffers begin at a page, so that the disk can take them as they are (see `store.disk`). This module
knows neither peers nor digests; what is done with a chunk is the caller's.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue

from p2ptrain.store import CHUNK_BYTES_MAX

STORING_MAX = 8
"""32 MiB beside a buffer for each lane: as many as a snapshot has on their way to the disk."""


class Landing:
    """Buffers and threads for `lanes` that hold one buffer each. `close` it at the end."""

    def __init__(self, lanes: int) -> None:
        self._empty: SimpleQueue[memoryview] = SimpleQueue()
        self._unmade = threading.Semaphore(lanes + STORING_MAX)
        self._threads = ThreadPoolExecutor(STORING_MAX, "swarm-store")

    def admit(self) -> None:
        """There is one lane more."""
        self._unmade.release()

    def buffer(self) -> memoryview:
        """An empty one, of the length of the longest chunk; waits until one is empty."""
        try:
            return self._empty.get_nowait()
        except Empty:
            if self._unmade.acquire(blocking=False):
                return memoryview(mmap.mmap(-1, CHUNK_BYTES_MAX))
            return self._empty.get()

    def give_back(self, buffer: memoryview) -> None:
        """A lane has ended. It may begin anew, and then takes another one."""
        self._empty.put(buffer)

    def store(self, buffer: memoryview, put: Callable[[], None]) -> Future[None]:
        """Have `put` called in a thread; after that the buffer is empty again."""

        def put_and_empty() -> None:
            try:
                put()
            finally:
                self.give_back(buffer)

        return self._threads.submit(put_and_empty)

    def close(self) -> None:
        """Returns when all that was to be stored is, or has failed."""
        self._threads.shutdown()

"""Write-behind: received chunks go to the disk while their lanes read on.

A chunk has no name in the store before its bytes are synced. A lane that waited for that would stop
reading, and its line would stop once TCP's buffers are full. At 1 Gbit/s a chunk takes 34 ms to
arrive and, on a good disk, about as long to be synced. So a lane hands over its full buffer and
takes an empty one. It waits only when `STORING_MAX` chunks are already on their way, because then
the disk is the bottleneck.

Buffers begin at a page, so that the disk can take them as they are (see `store.disk`). This module
knows neither peers nor digests; the caller decides what is done with a chunk.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue

from p2ptrain.store import CHUNK_BYTES_MAX

STORING_MAX = 8
"""32 MiB beside one buffer for each lane: as many as a snapshot has on their way to the disk."""


class WriteBehind:
    """Buffers and threads for `lanes` lanes that hold one buffer each. `close` it at the end."""

    def __init__(self, lanes: int) -> None:
        self._empty: SimpleQueue[memoryview] = SimpleQueue()
        self._unmade = threading.Semaphore(lanes + STORING_MAX)
        self._threads = ThreadPoolExecutor(STORING_MAX, "swarm-store")

    def add_lane(self) -> None:
        """Provide for one more lane."""
        self._unmade.release()

    def buffer(self) -> memoryview:
        """Return an empty buffer of the length of the longest chunk; wait until there is one."""
        try:
            return self._empty.get_nowait()
        except Empty:
            if self._unmade.acquire(blocking=False):
                return memoryview(mmap.mmap(-1, CHUNK_BYTES_MAX))
            return self._empty.get()

    def give_back(self, buffer: memoryview) -> None:
        """Return the buffer of a lane that has ended. If the lane restarts, it takes another."""
        self._empty.put(buffer)

    def store(self, buffer: memoryview, put: Callable[[], None]) -> Future[None]:
        """Call `put` in a thread; after that the buffer is empty again."""

        def put_and_empty() -> None:
            try:
                put()
            finally:
                self.give_back(buffer)

        return self._threads.submit(put_and_empty)

    def close(self) -> None:
        """Wait until everything is stored, or has failed."""
        self._threads.shutdown()

"""Write-behind: received chunks are written to disk while their lanes continue to read. (A lane is
a connection to a source, with its own thread.)

A chunk gets its name in the store only after its bytes are synced. A lane that waited for the sync
would stop reading, and its connection would stall once TCP's buffers are full. At 1 Gbit/s a chunk
takes 34 ms to arrive and, on a good disk, about as long to be synced. So a lane hands over its full
buffer and takes an empty one. It waits only while `STORING_MAX` chunks are being stored, because
then the disk is the bottleneck.

Buffers are page-aligned, so that they can be written without a copy (see `store.disk`). This module
knows nothing about peers or digests; the caller decides what to do with a chunk.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue

from p2ptrain.store import CHUNK_BYTES_MAX

STORING_MAX = 8
"""Maximum number of chunks that are being stored: 8 chunks of 4 MiB take 32 MiB, in addition to one
buffer per lane. Writing a snapshot uses the same number of buffers."""


class WriteBehind:
    """Buffers and threads for `lanes` lanes that hold one buffer each. `close` it at the end."""

    def __init__(self, lanes: int) -> None:
        self._empty: SimpleQueue[memoryview] = SimpleQueue()
        self._unmade = threading.Semaphore(lanes + STORING_MAX)
        self._threads = ThreadPoolExecutor(STORING_MAX, "swarm-store")

    def add_lane(self) -> None:
        """Allow one more lane."""
        self._unmade.release()

    def buffer(self) -> memoryview:
        """Return an empty buffer of the maximum chunk length, waiting for one if necessary."""
        try:
            return self._empty.get_nowait()
        except Empty:
            if self._unmade.acquire(blocking=False):
                return memoryview(mmap.mmap(-1, CHUNK_BYTES_MAX))
            return self._empty.get()

    def give_back(self, buffer: memoryview) -> None:
        """Return the buffer of a lane that has ended. If the lane restarts, it takes a new one."""
        self._empty.put(buffer)

    def store(self, buffer: memoryview, put: Callable[[], None]) -> Future[None]:
        """Call `put`, which stores the buffer's chunk, in a thread. Then the buffer is empty
        again.
        """

        stored = self._threads.submit(put)
        stored.add_done_callback(lambda _: self.give_back(buffer))
        return stored

    def close(self) -> None:
        """Wait until all chunks have been stored or have failed."""
        self._threads.shutdown()

"""Copy-on-write: read memory as it was at one instant, while other threads change it.

A snapshot takes seconds to write, and the next outer step must not wait for that. So the state is
*frozen*, which costs nothing at first. Before a thread changes bytes, it calls `before_write`,
which copies the affected pieces that have not been read yet. The reader also copies each piece into
its own memory. So a thread that changes bytes waits at most for the copy of one piece, no matter
how slow the disk is.

In the worst case, if an update follows immediately after the freeze, everything is copied. Then a
second state is in memory until the snapshot is written.

The module handles bytes and threads; it knows nothing about parameters or disks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Copy = Callable[[Bytes, Bytes], None]


class Frozen:
    """A view of `regions`, one after another, as they were when this object was created.

    One thread calls `fill`; the threads that change the state call `before_write`. `close` ends the
    view. After that, `before_write` no longer waits, and `fill` returns 0. `copy(to, source)`
    copies one piece; tests pass their own.
    """

    def __init__(
        self, regions: Sequence[memoryview], piece_bytes: int, copy: Copy = np.copyto
    ) -> None:
        self._copy = copy
        self.memory_pieces = 0
        """Number of pieces for which memory was allocated so far. Their memory is reused."""
        self._pieces: list[Bytes] = [
            np.frombuffer(region[start : start + piece_bytes], np.uint8)
            for region in regions
            for start in range(0, len(region), piece_bytes)
        ]
        self._first_piece = [0]
        for region in regions:
            self._first_piece.append(self._first_piece[-1] - (-len(region) // piece_bytes))
        self._piece_bytes = piece_bytes
        self._changed = threading.Condition()
        self._copies: dict[int, Bytes] = {}
        # Buffers of copies that were read. Reuse them, because allocating is several times slower
        # than copying.
        self._spare: list[Bytes] = []
        self._next = 0
        self._offset = 0  # in the next piece
        # Pieces that a thread is copying right now, outside the lock and without the GIL.
        self._busy: set[int] = set()

    @property
    def copied(self) -> int:
        """Number of pieces that are held as copies now."""
        return len(self._copies)

    def close(self) -> None:
        """End the view: no more copies are made."""
        with self._changed:
            self._next = len(self._pieces)
            self._copies.clear()
            self._spare.clear()

    def fill(self, view: memoryview) -> int:
        """Copy the next bytes into `view` and return their number. If the bytes do not fill `view`,
        they are the last ones.
        """
        target, filled = np.frombuffer(view, np.uint8), 0
        while filled < len(target) and self._next < len(self._pieces):
            filled += self._read(target[filled:])
        return filled

    def _read(self, target: Bytes) -> int:
        """Copy as much of the rest of the next piece as fits into `target`."""
        index = self._next
        with self._taken(index):
            piece = self._copies.get(index, self._pieces[index])[self._offset :]
            count = min(len(piece), len(target))
            self._copy(target[:count], piece[:count])
            self._offset += count
            if count < len(piece):
                return count
            with self._changed:
                copy = self._copies.pop(index, None)
                if copy is not None and len(copy) == self._piece_bytes:
                    self._spare.append(copy)
                # The view may have been closed meanwhile, so do not decrease `_next`.
                self._next, self._offset = max(self._next, index + 1), 0
        return count

    def before_write(self, region: int, start: int, stop: int) -> None:
        """Announce that bytes [start, stop) of a region will change. Returns when they may
        change.
        """
        first = self._first_piece[region] + start // self._piece_bytes
        last = self._first_piece[region] + (stop - 1) // self._piece_bytes
        for index in range(first, last + 1):
            self._keep(index)

    def _keep(self, index: int) -> None:
        """Copy a piece unless it was already read or copied."""
        with self._taken(index):
            if index < self._next or index in self._copies:
                return
            piece = self._pieces[index]
            copy = self._memory()[: len(piece)]
            self._copy(copy, piece)
            with self._changed:
                if index >= self._next:
                    self._copies[index] = copy

    def _memory(self) -> Bytes:
        with self._changed:
            if self._spare:
                return self._spare.pop()
            self.memory_pieces += 1
        return np.empty(self._piece_bytes, np.uint8)

    @contextmanager
    def _taken(self, index: int) -> Iterator[None]:
        """Keep other threads from reading or copying this piece within the block."""
        with self._changed:
            self._changed.wait_for(lambda: index not in self._busy)
            self._busy.add(index)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(index)
                self._changed.notify_all()

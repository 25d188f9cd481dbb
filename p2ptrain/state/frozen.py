"""Copy-on-write: the bytes of some memory as they were at one instant, read while it changes.

A snapshot takes seconds to write, and the next outer step must not wait for it. So the state is
*frozen*, which costs nothing: whoever is about to change bytes says so first, and the pieces in
question that have not been read yet are then copied. The one piece that is being read at that
moment is waited for.

In the worst case, an update right after the freeze, everything is copied once; then memory for a
second state is needed until the snapshot is written.

It knows bytes and threads, nothing of parameters or disks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Self


class Frozen:
    """A view of `regions`, one after the other, as they were when this was made.

    One thread reads `pieces`, others call `before_write`. It ends with `close` or the `with`
    block, after which writers are not held up any more and the pieces are gone.
    """

    def __init__(self, regions: Sequence[memoryview], piece_bytes: int) -> None:
        self._pieces = [
            (number, region[start : start + piece_bytes])
            for number, region in enumerate(regions)
            for start in range(0, len(region), piece_bytes)
        ]
        self._first_piece = [0]
        for region in regions:
            self._first_piece.append(self._first_piece[-1] - (-len(region) // piece_bytes))
        self._piece_bytes = piece_bytes
        self._changed = threading.Condition()
        self._copies: dict[int, bytes] = {}
        self._next = 0
        self._reading = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go: no copies are made any more."""
        with self._changed:
            self._next = len(self._pieces)
            self._reading = -1
            self._copies.clear()
            self._changed.notify_all()

    def pieces(self) -> Iterator[memoryview]:
        """The bytes in order. Each piece is valid until the next one is asked for."""
        while (piece := self._begin()) is not None:
            try:
                yield piece
            finally:
                self._end()

    def _begin(self) -> memoryview | None:
        with self._changed:
            if self._next == len(self._pieces):
                return None
            index = self._next
            self._next += 1
            if index in self._copies:
                return memoryview(self._copies.pop(index))
            self._reading = index
            return self._pieces[index][1]

    def _end(self) -> None:
        with self._changed:
            self._reading = -1
            self._changed.notify_all()

    def before_write(self, region: int, start: int, stop: int) -> None:
        """Say that bytes [start, stop) of a region are about to change; returns when they may."""
        first = self._first_piece[region] + start // self._piece_bytes
        last = self._first_piece[region] + (stop - 1) // self._piece_bytes
        with self._changed:
            for index in range(max(first, self._next), last + 1):
                if index not in self._copies:
                    self._copies[index] = bytes(self._pieces[index][1])
            self._changed.wait_for(lambda: not first <= self._reading <= last)

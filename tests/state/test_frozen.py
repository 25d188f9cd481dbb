"""Copy-on-write: the reader sees the memory as it was when it was frozen, whatever is written
later.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.state import Frozen
from p2ptrain.state.frozen import Bytes

PIECE = 4


def regions(*lengths: int) -> list[bytearray]:
    total = iter(range(256))
    return [bytearray(next(total) for _ in range(length)) for length in lengths]


def frozen_over(memory: Sequence[bytearray]) -> Frozen:
    return Frozen([memoryview(region) for region in memory], PIECE)


def taken(frozen: Frozen, size: int) -> bytes:
    view = bytearray(size)
    return bytes(view[: frozen.fill(memoryview(view))])


def test_memory_of_finished_copies_is_reused() -> None:
    memory = regions(4 * PIECE + 1)
    with closing(frozen_over(memory)) as frozen:
        change(frozen, memory, 0, 0, 2 * PIECE)
        assert (frozen.copied, frozen.memory_pieces) == (2, 2)
        assert taken(frozen, 2 * PIECE) == bytes(range(2 * PIECE))
        change(frozen, memory, 0, 2 * PIECE, 2 * PIECE + 1)
        assert (frozen.copied, frozen.memory_pieces) == (3, 3)
        assert taken(frozen, 99) == bytes(range(2 * PIECE, 4 * PIECE + 1))


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 19), st.integers(1, 9)), max_size=12),
    st.lists(st.integers(0, 14), max_size=12),
    st.integers(1, 9),
)
def test_writes_after_the_freeze_are_not_visible(
    lengths: list[int], writes: list[tuple[int, int, int]], moments: list[int], size: int
) -> None:
    memory = regions(*lengths)
    expected = b"".join(memory)
    due = sorted(zip(moments, writes, strict=False))
    read = b""
    with closing(frozen_over(memory)) as frozen:
        for moment in range(30):
            while due and due[0][0] <= moment:
                _, (region, start, length) = due.pop(0)
                change(frozen, memory, region % len(memory), start, length)
            read += taken(frozen, size)
        read += taken(frozen, 256)
    assert read == expected


def change(
    frozen: Frozen, memory: Sequence[bytearray], region: int, start: int, length: int
) -> None:
    stop = min(start + length, len(memory[region]))
    if start < stop:
        frozen.before_write(region, start, stop)
        memory[region][start:stop] = b"\xff" * (stop - start)


def test_only_pieces_not_yet_read_are_copied() -> None:
    memory = regions(12)
    with closing(frozen_over(memory)) as frozen:
        assert taken(frozen, 6) == bytes(range(6))
        frozen.before_write(0, 0, 4)
        assert frozen.copied == 0
        frozen.before_write(0, 8, 9)
        assert frozen.copied == 1
        frozen.before_write(0, 4, 5)  # half of this piece is not read yet
        assert frozen.copied == 2
        assert taken(frozen, 6) == bytes(range(6, 12))
        assert frozen.copied == 0


class HeldUpCopy:
    """A function that copies memory. Its first call sets `begun`, and then waits for `go_on`."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, to: Bytes, source: Bytes) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(100)
        np.copyto(to, source)


def test_writer_waits_only_while_its_own_piece_is_being_copied() -> None:
    memory, copy = regions(12), HeldUpCopy()
    view, written = bytearray(4), threading.Event()
    with closing(Frozen([memoryview(region) for region in memory], PIECE, copy)) as frozen:
        reader = threading.Thread(target=frozen.fill, args=(memoryview(view),))
        reader.start()
        assert copy.begun.wait(100)

        def write() -> None:
            frozen.before_write(0, 1, 2)
            written.set()

        writer = threading.Thread(target=write)
        writer.start()
        frozen.before_write(0, 4, 12)
        assert not written.is_set()
        copy.go_on.set()
        reader.join(100)
        writer.join(100)
        assert written.is_set()
        assert view == bytes(range(4))
        assert frozen.copied == 2


def test_stalled_reader_does_not_block_writers() -> None:
    memory = regions(12)
    with closing(frozen_over(memory)) as frozen:
        assert taken(frozen, 6) == bytes(range(6))
        # The writer runs in the reader's thread, so a wait would never end.
        change(frozen, memory, 0, 0, 12)
        assert taken(frozen, 12) == bytes(range(6, 12))


def test_after_close_nothing_is_copied_and_nothing_can_be_read() -> None:
    memory = regions(8)
    frozen = frozen_over(memory)
    assert taken(frozen, 2) == bytes(range(2))
    frozen.before_write(0, 4, 8)
    frozen.close()
    frozen.before_write(0, 0, 8)
    assert frozen.copied == 0
    assert taken(frozen, 8) == b""

"""Copy-on-write: the reader sees the instant of the freeze, whatever the writers do meanwhile."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.state import Frozen

PIECE = 4


def regions(*lengths):
    total = iter(range(256))
    return [bytearray(next(total) for _ in range(length)) for length in lengths]


def frozen_over(memory):
    return Frozen([memoryview(region) for region in memory], PIECE)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 19), st.integers(1, 9)), max_size=12),
    st.lists(st.integers(0, 14), max_size=12),
)
def test_writes_at_any_time_do_not_show(lengths, writes, moments):
    memory = regions(*lengths)
    expected = b"".join(memory)
    due = sorted(zip(moments, writes, strict=False))
    read = b""
    with frozen_over(memory) as frozen:
        pieces = frozen.pieces()
        for moment in range(30):
            while due and due[0][0] <= moment:
                _, (region, start, length) = due.pop(0)
                change(frozen, memory, region % len(memory), start, length)
            # Taken and read at once: a write to the piece in hand would wait for this thread.
            piece = next(pieces, None)
            read += bytes(piece or b"")
            frozen._end()
    assert read == expected


def change(frozen, memory, region, start, length):
    stop = min(start + length, len(memory[region]))
    if start < stop:
        frozen.before_write(region, start, stop)
        memory[region][start:stop] = b"\xff" * (stop - start)


def test_only_pieces_not_yet_read_are_copied():
    memory = regions(12)
    with frozen_over(memory) as frozen:
        pieces = frozen.pieces()
        assert bytes(next(pieces)) == bytes(range(4))
        second = next(pieces)
        frozen.before_write(0, 0, 4)
        assert len(frozen._copies) == 0
        frozen.before_write(0, 8, 9)
        assert list(frozen._copies) == [2]
        assert bytes(second) == bytes(range(4, 8))


def test_a_writer_waits_for_the_piece_in_hand_and_for_no_other():
    memory = regions(12)
    with frozen_over(memory) as frozen:
        pieces = frozen.pieces()
        in_hand = next(pieces)
        may_write = threading.Event()

        def write():
            frozen.before_write(0, 1, 2)
            may_write.set()

        writer = threading.Thread(target=write)
        writer.start()
        frozen.before_write(0, 4, 12)
        assert not may_write.is_set()
        assert bytes(in_hand) == bytes(range(4))
        next(pieces)
        writer.join(10)
        assert may_write.is_set()


def test_closing_lets_a_waiting_writer_go_and_copies_nothing_more():
    memory = regions(8)
    frozen = frozen_over(memory)
    next(frozen.pieces())
    writer = threading.Thread(target=frozen.before_write, args=(0, 0, 8))
    writer.start()
    frozen.close()
    writer.join(10)
    assert not writer.is_alive()
    frozen.before_write(0, 0, 8)
    assert frozen._copies == {}
    assert list(frozen.pieces()) == []

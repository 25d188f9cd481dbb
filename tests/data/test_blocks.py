"""A block returns exactly the tokens that were stored, or is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.data.blocks import HEADER_BYTES, decode_block, encode_block, read_block
from p2ptrain.errors import ChunkCorrupt, ChunkMissing

ROWS = np.arange(4 * 9).reshape(4, 9) % 37
BLOCK = encode_block(ROWS, vocab=37)


@given(
    sequences=st.integers(1, 5),
    sequence=st.integers(1, 17),
    vocab=st.sampled_from([2, 257, 2**16, 2**16 + 1, 128_256]),
    seed=st.integers(0, 2**32),
)
def test_decoded_block_has_the_tokens_that_were_encoded(
    sequences: int, sequence: int, vocab: int, seed: int
) -> None:
    rows = np.random.default_rng(seed).integers(0, vocab, (sequences, sequence + 1))
    data = encode_block(rows, vocab)
    assert len(data) == HEADER_BYTES + rows.size * (2 if vocab <= 2**16 else 4)
    np.testing.assert_array_equal(decode_block(data, vocab=vocab, sequence=sequence), rows)


@given(place=st.integers(0, len(BLOCK) - 1), flip=st.integers(1, 255))
def test_damaged_byte_is_always_noticed(place: int, flip: int) -> None:
    damaged = bytearray(BLOCK)
    damaged[place] ^= flip
    with pytest.raises(ChunkCorrupt):
        decode_block(bytes(damaged), vocab=37, sequence=8)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, len(BLOCK) - 1])
def test_truncated_block_is_refused(length: int) -> None:
    with pytest.raises(ChunkCorrupt):
        decode_block(BLOCK[:length], vocab=37, sequence=8)


@pytest.mark.parametrize(
    ("vocab", "sequence", "complaint"),
    [
        (35, 8, "largest in the vocabulary is 34"),
        (37, 9, "this run has 10 tokens per row"),
        (37, 7, "has 8 tokens per row"),
    ],
)
def test_block_of_a_different_run_is_refused(vocab: int, sequence: int, complaint: str) -> None:
    with pytest.raises(ChunkCorrupt, match=complaint) as caught:
        decode_block(BLOCK, vocab=vocab, sequence=sequence, name="a3f0")
    assert caught.value.code == "DATA"
    assert "a3f0" in caught.value.what
    assert caught.value.do


def test_absent_block_is_reported_as_missing_not_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "block").write_bytes(BLOCK)
    rows = read_block(tmp_path / "block", vocab=37, sequence=8)
    np.testing.assert_array_equal(rows, ROWS)
    with pytest.raises(ChunkMissing, match="No such file"):
        read_block(tmp_path / "other", vocab=37, sequence=8)

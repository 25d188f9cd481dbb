"""Begin and end tokens (marks) stand where a document begins or ends, not where it was only divided
into pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from p2ptrain.data.blocks import decode_block
from p2ptrain.data.pack import PackedBlocks, PackSpec, pack_stream
from p2ptrain.data.piece import Piece
from p2ptrain.data.reads import READ_BASES_MAX
from p2ptrain.data.sources import find_source
from p2ptrain.data.vocabulary import Vocabulary, learn_reads, learn_text

SPEC = PackSpec(vocab=300, sequence=32, block_sequences=2, validation_blocks=2, seed=1)


def pieces_of(path: Path) -> list[Piece]:
    return list(find_source(path.name, field="", limit_bytes=10**6, beside=path.parent).pieces())


def lines(count: int) -> str:
    return "".join(f"line {number} says {number * number}\n" for number in range(count))


def known_of(pieces: list[Piece]) -> Vocabulary:
    return learn_text([piece.text for piece in pieces], SPEC.vocab)


def packed_of(path: Path) -> PackedBlocks[bytes]:
    pieces, scratch = pieces_of(path), path.parent / "scratch"
    scratch.mkdir()
    return pack_stream(pieces, known_of(pieces), SPEC, scratch, bytes)


def rows(blocks: tuple[bytes, ...]) -> np.ndarray:
    return np.concatenate([decode_block(block, vocab=300, sequence=32) for block in blocks])


def test_text_file_of_20_kilobytes_has_one_begin_token_and_all_its_text(tmp_path: Path) -> None:
    text = lines(1000)
    (tmp_path / "a.txt").write_text(text)
    pieces = pieces_of(tmp_path / "a.txt")
    known = known_of(pieces)
    tokens = np.concatenate(known.encode(pieces)).tolist()
    assert len(text) > 20_000
    assert len(pieces) > 2
    assert (tokens.count(known.begin), tokens[0]) == (1, known.begin)
    assert known.tokenizer.decode(tokens) == text


def test_two_text_files_have_two_begin_tokens(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    for name in "ab":
        (tmp_path / "all" / name).write_text(lines(1000))
    pieces = pieces_of(tmp_path / "all")
    known = known_of(pieces)
    encoded = known.encode(pieces)
    assert sum(int((each == known.begin).sum()) for each in encoded) == 2
    assert [each[0] == known.begin for each in encoded] == [piece.begins for piece in pieces]
    assert packed_of(tmp_path / "all").documents == 2


@pytest.mark.parametrize("more", [-1, 0, 1, READ_BASES_MAX, READ_BASES_MAX + 7])
def test_contig_of_any_length_has_one_begin_and_one_end_token(tmp_path: Path, more: int) -> None:
    bases = ("ACGTTGCA" * (READ_BASES_MAX // 2))[: READ_BASES_MAX + more]
    (tmp_path / "a.fa").write_text(f">contig\n{bases}\n")
    (tmp_path / "a.fq").write_text(f"@read\n{bases}\n+\n{'I' * len(bases)}\n")
    known = learn_reads(["ACGTTGCA" * 9] * 9, 32)
    for name in ("a.fa", "a.fq"):
        tokens = np.concatenate(known.encode(pieces_of(tmp_path / name))).tolist()
        assert (tokens[0], tokens.count(4)) == (4, 1)
        assert (tokens[-1], tokens.count(5)) == (5, 1)
        assert known.tokenizer.decode(tokens) == bases


def test_pieces_of_one_file_are_split_without_overlap(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(lines(4000))
    packed = packed_of(tmp_path / "a.txt")
    train, held_out = rows(packed.train), rows(packed.validation)
    assert packed.documents == 1
    assert (len(held_out), len(train) > 100) == (4, True)
    seen = {row.tobytes() for row in train}
    assert not any(row.tobytes() in seen for row in held_out)
    assert (np.concatenate([train, held_out]) == packed.begin).sum() <= 1


def test_piece_without_tokens_is_skipped(tmp_path: Path) -> None:
    known = learn_text([lines(400)], SPEC.vocab)
    nothing = Piece("", begins=False, ends=False)
    whole = pack_stream([Piece(lines(400)), Piece(lines(400))], known, SPEC, tmp_path, bytes)
    (tmp_path / "b").mkdir()
    more = [Piece(lines(400)), Piece(lines(400)), nothing]
    assert pack_stream(more, known, SPEC, tmp_path / "b", bytes).tokens == whole.tokens

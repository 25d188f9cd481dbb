"""Packing: equal text gives equal blocks, no document is in both training and validation, and text
survives unchanged."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from tokenizers import Tokenizer

from p2ptrain.data.blocks import decode_block
from p2ptrain.data.pack import PackedBlocks, PackSpec, pack, pack_stream
from p2ptrain.data.piece import Piece
from p2ptrain.data.spool import Portion
from p2ptrain.data.synthesis import LETTERS, SynthesisSpec, reads
from p2ptrain.data.text import standard_library_text
from p2ptrain.data.token_entropy import entropy_nats, estimated_entropy_nats
from p2ptrain.data.vocabulary import END_OF_TEXT, learn_reads, learn_text
from p2ptrain.errors import ConfigError

SPEC = PackSpec(vocab=400, sequence=32, block_sequences=4, validation_blocks=3, seed=1)


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return standard_library_text(300_000)


@pytest.fixture(scope="module")
def packed(documents: list[str]) -> PackedBlocks[bytes]:
    return pack(documents, SPEC)


def rows_of(blocks: tuple[bytes, ...]) -> np.ndarray:
    return np.concatenate([decode_block(b, vocab=400, sequence=32) for b in blocks])


def digest(packed: PackedBlocks[bytes]) -> str:
    parts = (packed.tokenizer_json, *packed.train, *packed.validation)
    return blake3(b"".join(parts)).hexdigest()


def test_same_text_and_seed_give_the_same_bytes_in_a_new_process(
    packed: PackedBlocks[bytes],
) -> None:
    program = (
        "from p2ptrain.data.pack import *; from p2ptrain.data.text import *; import blake3\n"
        f"p = pack(standard_library_text(300_000), {SPEC!r})\n"
        "parts = (p.tokenizer_json, *p.train, *p.validation)\n"
        "print(blake3.blake3(b''.join(parts)).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert other.stdout.strip() == digest(packed), other.stderr


def test_different_seed_gives_a_different_order(
    documents: list[str], packed: PackedBlocks[bytes]
) -> None:
    assert pack(documents, replace(SPEC, seed=2)).train[0] != packed.train[0]


def test_every_block_has_the_agreed_shape(packed: PackedBlocks[bytes]) -> None:
    assert len(packed.validation) == SPEC.validation_blocks
    assert len(packed.train) > 50
    for block in packed.train + packed.validation:
        assert decode_block(block, vocab=400, sequence=32).shape == (4, 33)


def test_validation_shares_no_document_with_training(
    documents: list[str], packed: PackedBlocks[bytes]
) -> None:
    tokenizer = Tokenizer.from_str(packed.tokenizer_json.decode())
    homes: dict[str, set[int]] = {"train": set(), "validation": set()}
    for side, blocks in (("train", packed.train), ("validation", packed.validation)):
        for row in rows_of(blocks):
            text = max(tokenizer.decode(row, skip_special_tokens=False).split(END_OF_TEXT), key=len)
            found = [index for index, document in enumerate(documents) if text in document]
            if len(found) == 1:
                homes[side].add(found[0])
    assert homes["train"]
    assert homes["validation"]
    assert homes["train"].isdisjoint(homes["validation"])


def test_tokenizer_decodes_to_exactly_the_encoded_text(packed: PackedBlocks[bytes]) -> None:
    tokenizer = Tokenizer.from_str(packed.tokenizer_json.decode())
    assert tokenizer.get_vocab_size() == SPEC.vocab
    for text in ("def f(x):\n\treturn x", "naïve Ωμέγα 漢字 🦦", " two  spaces ", "\x00\x7f"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_text_has_fewer_tokens_than_bytes(packed: PackedBlocks[bytes]) -> None:
    assert 1.3 < packed.text_bytes / packed.tokens < 4


def test_error_for_too_little_text_says_how_much_is_needed() -> None:
    with pytest.raises(ConfigError, match="not enough for 3 validation blocks"):
        pack(["a few words"], SPEC)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab", 0),
        ("sequence", 0),
        ("block_sequences", 0),
        ("validation_blocks", 0),
        ("block_sequences", 2**16),
    ],
)
def test_invalid_packing_settings_are_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=field.removeprefix("block_")):
        replace(SPEC, **{field: value})


def test_vocabulary_without_room_for_all_bytes_is_refused(documents: list[str]) -> None:
    with pytest.raises(ConfigError, match="vocab is 256"):
        pack(documents, replace(SPEC, vocab=256))


def stream(documents: list[str], scratch: Path, **settings: Any) -> PackedBlocks[bytes]:
    scratch.mkdir()
    vocabulary = learn_text(documents, SPEC.vocab)
    return pack_stream(map(Piece, documents), vocabulary, SPEC, scratch, bytes, **settings)


def test_packing_does_not_depend_on_the_amount_of_memory_used(
    documents: list[str], packed: PackedBlocks[bytes], tmp_path: Path
) -> None:
    small = Portion(tokens=1000, pieces=3)
    assert stream(documents, tmp_path / "small", file_bytes=4096, portion=small) == packed


def test_all_tokens_except_a_short_remainder_are_in_blocks(
    documents: list[str], packed: PackedBlocks[bytes]
) -> None:
    rows = len(rows_of(packed.train)) + len(rows_of(packed.validation))
    assert 0 <= packed.tokens - rows * 33 < 2 * 4 * 33 + max(map(len, documents))
    assert packed.documents == len(documents)


def test_unigram_entropy_is_computed_from_the_training_tokens(packed: PackedBlocks[bytes]) -> None:
    tokens, counts = np.unique(rows_of(packed.train), return_counts=True)
    assert entropy_nats(np.array([5, 5, 0])) == pytest.approx(np.log(2))
    assert packed.entropy_nats == pytest.approx(entropy_nats(counts))
    assert 3 < packed.entropy_nats < np.log(len(tokens))


def test_each_read_is_enclosed_by_a_begin_and_an_end_token(tmp_path: Path) -> None:
    spec = SynthesisSpec(reads=400, genomes=2, genome_bases=3000, read_bases=60)
    documents = [LETTERS[read].tobytes().decode() for read in reads(spec)]
    vocabulary = learn_reads(documents, 64)
    assert (vocabulary.begin, vocabulary.end, vocabulary.size) == (4, 5, 64)
    packed = pack_stream(
        map(Piece, documents), vocabulary, replace(SPEC, vocab=64), tmp_path, bytes
    )
    rows = np.concatenate([decode_block(b, vocab=64, sequence=32) for b in packed.train])
    assert packed.begin == 4
    for row in rows:
        begins, ends = row == 4, row == 5
        assert (begins[1:] == ends[:-1]).all()
    assert (rows > 5).mean() > 0.8
    # The digest must be the same with every Python version, because a run's data are checked by
    # packing them again.
    assert digest(packed)[:16] == "18438c97c5b24892"


def test_entropy_of_a_sample_is_corrected_for_rare_tokens() -> None:
    random = np.random.default_rng(5)
    shares = 1 / np.arange(1, 257)
    shares /= shares.sum()
    whole = -float(np.sum(shares * np.log(shares)))
    samples = [random.multinomial(64 * 256, shares) for _ in range(100)]
    plain = [entropy_nats(each) for each in samples]
    corrected = [estimated_entropy_nats(each) for each in samples]
    assert np.mean(plain) < whole - 0.004
    assert np.mean(corrected) == pytest.approx(whole, abs=0.002)


def test_document_cannot_create_special_tokens_by_spelling_them(tmp_path: Path) -> None:
    documents = [f"text {number} {END_OF_TEXT} goes on" for number in range(300)]
    packed = stream(documents, tmp_path / "scratch")
    held = sum(
        int((decode_block(b, vocab=400, sequence=32) == packed.begin).sum())
        for b in packed.train + packed.validation
    )
    assert held <= len(documents)


def test_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    vocabulary = learn_text(["some text"], 400)
    with pytest.raises(ConfigError, match=r"model\.vocab is 257") as caught:
        pack_stream([Piece("x")], vocabulary, replace(SPEC, vocab=257), tmp_path, bytes)
    assert caught.value.do == f"set model.vocab to {vocabulary.size} or more"


def test_standard_library_text_is_python_code_up_to_the_limit(documents: list[str]) -> None:
    size = sum(len(document.encode()) for document in documents)
    assert 250_000 < size <= 300_000
    assert any("import " in document for document in documents)
    assert documents == standard_library_text(300_000)
    assert standard_library_text(0) == []

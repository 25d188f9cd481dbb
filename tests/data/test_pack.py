"""Packing: the same text gives the same blocks, nothing leaks, nothing is made up."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from blake3 import blake3
from tokenizers import Tokenizer

from p2ptrain.data.blocks import decode_block
from p2ptrain.data.pack import END_OF_TEXT, PackedData, PackSpec, pack
from p2ptrain.data.text import standard_library_text
from p2ptrain.errors import ConfigError

SPEC = PackSpec(vocab=400, sequence=32, block_sequences=4, validation_blocks=3, seed=1)


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return standard_library_text(300_000)


@pytest.fixture(scope="module")
def packed(documents: list[str]) -> PackedData:
    return pack(documents, SPEC)


def rows_of(blocks: tuple[bytes, ...]) -> np.ndarray:
    return np.concatenate([decode_block(b, vocab=400, sequence=32) for b in blocks])


def digest(packed: PackedData) -> str:
    parts = (packed.tokenizer_json, *packed.train, *packed.validation)
    return blake3(b"".join(parts)).hexdigest()


def test_the_same_text_and_seed_give_the_same_bytes_in_another_process(packed: PackedData) -> None:
    program = (
        "from p2ptrain.data.pack import *; from p2ptrain.data.text import *; import blake3\n"
        f"p = pack(standard_library_text(300_000), {SPEC!r})\n"
        "parts = (p.tokenizer_json, *p.train, *p.validation)\n"
        "print(blake3.blake3(b''.join(parts)).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert other.stdout.strip() == digest(packed), other.stderr


def test_another_seed_gives_another_order(documents: list[str], packed: PackedData) -> None:
    assert pack(documents, replace(SPEC, seed=2)).train[0] != packed.train[0]


def test_every_block_has_the_agreed_shape(packed: PackedData) -> None:
    assert len(packed.validation) == SPEC.validation_blocks
    assert len(packed.train) > 50
    for block in packed.train + packed.validation:
        assert decode_block(block, vocab=400, sequence=32).shape == (4, 33)


def test_validation_shares_no_document_with_training(
    documents: list[str], packed: PackedData
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


def test_the_tokenizer_gives_any_text_back_exactly(packed: PackedData) -> None:
    tokenizer = Tokenizer.from_str(packed.tokenizer_json.decode())
    assert tokenizer.get_vocab_size() == SPEC.vocab
    for text in ("def f(x):\n\treturn x", "naïve Ωμέγα 漢字 🦦", " two  spaces ", "\x00\x7f"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_tokens_say_more_than_bytes(packed: PackedData) -> None:
    assert 1.3 < packed.bytes_per_token < 4


def test_too_little_text_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match="too few for 3 validation blocks"):
        pack(["a few words"], SPEC)


@pytest.mark.parametrize(
    ("field", "value"),
    [("vocab", 256), ("sequence", 0), ("block_sequences", 0), ("validation_blocks", 0)],
)
def test_an_impossible_packing_is_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(SPEC, **{field: value})


def test_the_standard_library_is_python_within_the_limit(documents: list[str]) -> None:
    size = sum(len(document.encode()) for document in documents)
    assert 250_000 < size <= 300_000
    assert any("import " in document for document in documents)
    assert documents == standard_library_text(300_000)
    assert standard_library_text(0) == []

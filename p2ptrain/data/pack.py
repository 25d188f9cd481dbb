"""Packs documents into blocks: tokenizer, tokens, shuffled sequences, train and validation.

The same documents, numbers and seed give the same bytes, so an organiser can publish a run again
and get the same run's data, and anybody can check what the blocks were made of.

The split is by document: a validation sequence never shares a file with a training sequence.
Within each side the documents are shuffled, joined with an end-of-text token between them, and cut
into sequences that do not overlap; the sequences are shuffled again before they are cut into
blocks, so every block is a fair sample and leases of any size see the same mixture.

All tokens are held in memory (2 or 4 bytes each, and twice that while they are shuffled): fine up
to some billions of tokens.  It knows nothing of stores, leases or torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from p2ptrain.data.blocks import Tokens, encode_block
from p2ptrain.errors import ConfigError

END_OF_TEXT = "<|endoftext|>"
# 256 bytes and the end-of-text token, before any merge is learnt.
VOCAB_MIN = 257


@dataclass(frozen=True, slots=True)
class PackSpec:
    """What to make.  `block_sequences` is the run's inner batch: one block is one inner step."""

    vocab: int
    sequence: int
    block_sequences: int
    validation_blocks: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("sequence", "block_sequences", "validation_blocks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", do=f"set {name} to 1 or more")
        if self.vocab < VOCAB_MIN:
            raise ConfigError(
                f"vocab is {self.vocab}", do=f"a byte-level vocabulary has at least {VOCAB_MIN}"
            )

    @property
    def block_tokens(self) -> int:
        """Predicted tokens per block."""
        return self.sequence * self.block_sequences


@dataclass(frozen=True, slots=True)
class PackedData:
    """Blocks as bytes (see `blocks`), the tokenizer as JSON.  The caller puts them into a store."""

    spec: PackSpec
    tokenizer_json: bytes
    train: tuple[bytes, ...]
    validation: tuple[bytes, ...]
    bytes_per_token: float


def pack(documents: Sequence[str], spec: PackSpec) -> PackedData:
    """Tokenise, shuffle, split and cut `documents`.  What does not fill a block is left out.

    Raises:
        ConfigError: too little text for one training block beside the validation blocks.
    """
    tokenizer = train_tokenizer(documents, spec.vocab)
    random = np.random.Generator(np.random.Philox(spec.seed))
    encodings = tokenizer.encode_batch_fast(list(documents), add_special_tokens=False)
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokens = [np.asarray([*encoding.ids, end], dtype=np.uint32) for encoding in encodings]
    shuffled = [tokens[index] for index in random.permutation(len(tokens))]
    validation, train = _split(shuffled, spec)
    return PackedData(
        spec,
        tokenizer.to_str().encode(),
        train=_blocks(train, spec, random),
        validation=_blocks(validation, spec, random)[: spec.validation_blocks],
        bytes_per_token=sum(len(text.encode()) for text in documents)
        / sum(len(ids) for ids in tokens),
    )


def train_tokenizer(documents: Iterable[str], vocab: int) -> Tokenizer:
    """A byte-level BPE tokenizer: it encodes any text, and decodes to exactly that text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def _split(documents: list[Tokens], spec: PackSpec) -> tuple[Tokens, Tokens]:
    """The first documents that fill the validation blocks, and the rest, each joined."""
    wanted = spec.validation_blocks * spec.block_sequences * (spec.sequence + 1)
    ends = np.cumsum([len(document) for document in documents] or [0])
    cut = int(np.searchsorted(ends, wanted)) + 1
    rest = int(ends[-1] - ends[min(cut, len(ends)) - 1])
    if rest < spec.block_sequences * (spec.sequence + 1):
        raise ConfigError(
            f"{int(ends[-1])} tokens are too few for {spec.validation_blocks} validation blocks "
            f"and a training block of {spec.block_sequences} × {spec.sequence + 1} tokens",
            do="give more text, or make the blocks smaller or fewer",
        )
    return np.concatenate(documents[:cut]), np.concatenate(documents[cut:])


def _blocks(tokens: Tokens, spec: PackSpec, random: np.random.Generator) -> tuple[bytes, ...]:
    row_tokens = spec.sequence + 1
    rows = tokens[: len(tokens) // row_tokens * row_tokens].reshape(-1, row_tokens)
    rows = rows[random.permutation(len(rows))]
    return tuple(
        encode_block(rows[start : start + spec.block_sequences], spec.vocab)
        for start in range(0, len(rows) - spec.block_sequences + 1, spec.block_sequences)
    )

"""Pack documents into blocks of tokens for training and validation, split and shuffled.

    pieces ─▶ spool ─▶ split by piece ─▶ sequences ─▶ shuffle ─▶ blocks, one at a time
             (disk)                                    (disk)

The same documents, settings and seed give the same bytes. So an organiser who publishes a run again
gets the same data, and anybody can check which documents the blocks contain.

Each piece (see `piece`) is assigned to training or validation at random, so a validation sequence
never shares a piece with a training sequence. Most documents are one piece. If a document has
several pieces (a text file or a long contig), some of them may be held out while the rest is
trained on.

The pieces for training, and likewise those for validation, are joined, with a begin token where a
document begins, and divided into sequences that do not overlap. The sequences are shuffled before
they are grouped into blocks, so every block is a fair sample of the data. The tokens of a sequence
keep the order of the source. If a piece is held out, the pieces before and after it are joined.
There is a begin token between them only if the later piece begins a document.

Memory use is constant for up to 16 GiB of tokens. Beyond that, it is a few times 1/256 of the data
(`shuffle`). This module knows nothing about stores or leases, and does not use torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from p2ptrain.data.blocks import encode_block, encoded_bytes, token_bytes
from p2ptrain.data.piece import Piece
from p2ptrain.data.shuffle import FILE_BYTES, Rows, Shuffle
from p2ptrain.data.spool import USUAL_PORTION, Portion, Spool, Tokens
from p2ptrain.data.token_entropy import entropy_nats
from p2ptrain.data.vocabulary import Vocabulary, learn_text
from p2ptrain.errors import ConfigError, counted
from p2ptrain.store.blob import CHUNK_BYTES_MAX

BATCH_CHARACTERS = 2**20
"""Number of characters to collect before they are encoded on all cores."""

Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class PackSpec:
    """The blocks to create. `block_sequences` is the run's inner batch: one block is one inner
    step.
    """

    vocab: int
    sequence: int
    block_sequences: int
    validation_blocks: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("vocab", "sequence", "block_sequences", "validation_blocks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", do=f"set {name} to 1 or more")
        size = encoded_bytes(self.vocab, self.block_sequences, self.sequence)
        if size > CHUNK_BYTES_MAX:
            raise ConfigError(
                f"a block of {counted(self.block_sequences, 'sequence')} of {self.sequence} "
                f"tokens has {size} bytes; a block may have at most {CHUNK_BYTES_MAX}",
                do=(
                    "make inner.batch_sequences or model.sequence smaller; more peers compensate "
                    "for a smaller batch"
                ),
            )

    @property
    def block_tokens(self) -> int:
        """Number of predicted tokens per block."""
        return self.sequence * self.block_sequences

    @property
    def row_tokens(self) -> int:
        """Tokens per sequence: one more than predicted tokens, because the last needs a target."""
        return self.sequence + 1

    @property
    def token_dtype(self) -> str:
        return f"<u{token_bytes(self.vocab)}"


@dataclass(frozen=True, slots=True)
class PackedBlocks(Generic[Kept]):
    """The packed blocks, as the function `keep` of `pack_stream` returned them, in the order of the
    run's data index; and statistics.

    `documents` counts documents, not pieces: a text file is one document. `entropy_nats` is the
    order-0 entropy of the training blocks: the loss per token of a model that has learnt only how
    often each token occurs.
    """

    spec: PackSpec
    tokenizer_json: bytes
    begin: int
    train: tuple[Kept, ...]
    validation: tuple[Kept, ...]
    documents: int
    text_bytes: int
    tokens: int
    entropy_nats: float


def pack(documents: Sequence[str], spec: PackSpec) -> PackedBlocks[bytes]:
    """Pack text documents in memory into blocks in memory. The tokenizer is learnt from all
    documents.

    Raises ConfigError if there is too little text for the validation blocks and one training block.
    """
    with tempfile.TemporaryDirectory(prefix="p2ptrain-pack-") as folder:
        vocabulary = learn_text(documents, spec.vocab)
        return pack_stream(map(Piece, documents), vocabulary, spec, Path(folder), bytes)


def pack_stream(
    pieces: Iterable[Piece],
    vocabulary: Vocabulary,
    spec: PackSpec,
    scratch: Path,
    keep: Callable[[bytes], Kept],
    *,
    file_bytes: int = FILE_BYTES,
    portion: Portion = USUAL_PORTION,
) -> PackedBlocks[Kept]:
    """Encode, split and shuffle `pieces`; pass each block to `keep`, training blocks first.

    Tokens that do not fill a block are left out. `scratch` is an empty folder with room for three
    times the size of all tokens; its files can be deleted afterwards.

    Raises ConfigError: there is too little text for the validation blocks and one training block,
    or the vocabulary is larger than the model's.
    """
    if vocabulary.size > spec.vocab:
        raise ConfigError(
            f"the tokenizer has {vocabulary.size} tokens, but model.vocab is {spec.vocab}",
            do=f"set model.vocab to {vocabulary.size} or more",
        )
    counts = np.zeros(spec.vocab, dtype=np.int64)
    with Spool(scratch, spec.token_dtype, portion) as spool:
        documents, text_bytes = _fill(spool, pieces, vocabulary)
        split = _split(spool, spec)
        train = _side("train", spool, split, spec, scratch, file_bytes)
        trained = tuple(keep(block) for block in _blocks(train, spec, counts))
        held_out = _side("validation", spool, split, spec, scratch, file_bytes)
        blocks = islice(_blocks(held_out, spec, counts * 0), spec.validation_blocks)
        return PackedBlocks(
            spec,
            vocabulary.to_json(),
            vocabulary.begin,
            trained,
            tuple(keep(block) for block in blocks),
            documents=documents,
            text_bytes=text_bytes,
            tokens=spool.tokens,
            entropy_nats=entropy_nats(counts),
        )


def _fill(spool: Spool, pieces: Iterable[Piece], vocabulary: Vocabulary) -> tuple[int, int]:
    """Encode all pieces into `spool`; return the number of documents and the bytes of text."""
    batch: list[Piece] = []
    documents = text_bytes = characters = 0
    for piece in pieces:
        batch.append(piece)
        documents += piece.begins
        characters += len(piece.text)
        text_bytes += len(piece.text.encode())
        if characters >= BATCH_CHARACTERS:
            spool.extend(vocabulary.encode(batch))
            batch, characters = [], 0
    spool.extend(vocabulary.encode(batch))
    return documents, text_bytes


@dataclass(frozen=True, slots=True)
class _Split:
    """The indices of the pieces for validation, and the number of tokens for each use ("train",
    "validation").
    """

    held_out: NDArray[np.int64]
    tokens: dict[str, int]


def _split(spool: Spool, spec: PackSpec) -> _Split:
    block = spec.block_sequences * spec.row_tokens
    held_out, tokens = spool.choose(spec.validation_blocks * block, spec.seed)
    if spool.tokens - tokens < block:
        raise ConfigError(
            f"{counted(spool.tokens, 'token is', 'tokens are')} not enough for "
            f"{counted(spec.validation_blocks, 'validation block')} and one training block of "
            f"{spec.block_sequences} × {spec.row_tokens} tokens",
            do="use more text, or make the blocks smaller or fewer",
        )
    return _Split(held_out, {"validation": tokens, "train": spool.tokens - tokens})


def _side(
    side: str, spool: Spool, split: _Split, spec: PackSpec, scratch: Path, file_bytes: int
) -> Iterator[Rows]:
    """Yield all sequences for one use ("train" or "validation"), shuffled, several at a time."""
    shuffle = Shuffle(
        scratch,
        row_tokens=spec.row_tokens,
        token_dtype=spec.token_dtype,
        rows=split.tokens[side] // spec.row_tokens,
        seed=spec.seed,
        use=side,
        file_bytes=file_bytes,
    )
    with shuffle:
        rest = np.zeros(0, dtype=spec.token_dtype)
        for tokens in _tokens_of(side, spool, split):
            joined = np.concatenate([rest, tokens])
            whole = len(joined) // spec.row_tokens * spec.row_tokens
            shuffle.add_rows(joined[:whole].reshape(-1, spec.row_tokens))
            rest = joined[whole:]
        yield from shuffle.shuffled()


def _tokens_of(side: str, spool: Spool, split: _Split) -> Iterator[Tokens]:
    for first, lengths, tokens in spool.portions():
        numbers = np.arange(first, first + len(lengths))
        wanted = np.isin(numbers, split.held_out, invert=side == "train")
        yield tokens[np.repeat(wanted, lengths)]


def _blocks(portions: Iterator[Rows], spec: PackSpec, counts: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield all full blocks, and add the number of occurrences of each token to `counts`."""
    rest = np.zeros((0, spec.row_tokens), dtype=spec.token_dtype)
    for portion in portions:
        rows = np.concatenate([rest, portion])
        whole = len(rows) // spec.block_sequences * spec.block_sequences
        counts += np.bincount(rows[:whole].ravel(), minlength=len(counts))
        for start in range(0, whole, spec.block_sequences):
            yield encode_block(rows[start : start + spec.block_sequences], spec.vocab)
        rest = rows[whole:]

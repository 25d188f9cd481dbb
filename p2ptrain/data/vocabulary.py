"""The tokens of a run: a tokenizer, learnt from a sample of its documents or given, and its marks.

Text gets a byte-level BPE, which encodes anything and decodes to exactly that. Reads get a BPE over
nucleotides, with the special tokens where METAGENE-1 (arXiv 2501.02045) has them: BOS 4 and EOS 5.
A document that spells a mark's name is only text: marks are what packing sets, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import (
    Encoding,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

from p2ptrain.data.piece import Piece
from p2ptrain.data.splitmix import draws
from p2ptrain.data.tokenizer_file import library_errors
from p2ptrain.errors import ConfigError

END_OF_TEXT = "<|endoftext|>"
TEXT_VOCAB_MIN = 257
"""256 bytes and the mark, before any merge is learnt."""

NUCLEOTIDES = "ACGTN"
READ_MARKS = ("[PAD]", "[UNK]", "[SEP]", "[MASK]", "[BOS]", "[EOS]")
READS_VOCAB_MIN = len(READ_MARKS) + len(NUCLEOTIDES)

BEGINNINGS = ("[BOS]", "<s>", "<bos>", "<|begin_of_text|>", "<|bos|>", END_OF_TEXT)
ENDINGS = ("[EOS]", "</s>", "<eos>", "<|end_of_text|>", "<|eos|>")
"""How tokenizers that are given call their marks, the likeliest first."""

SAMPLE_CHARACTERS_MAX = 32 * 10**6
"""A tokenizer is learnt from at most so much: what more would teach it is beyond its few thousand
merges, and it counts its words in memory."""

READS_SAMPLE_CHARACTERS_MAX = 8 * 10**6
"""Reads have no words: each is one that occurs once, and counting is slow."""

PART_CHARACTERS = 2**16
"""A longer text is encoded in parts, cut after a white space if there is one near."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`begin` stands before every document, and `end`, if there is one, after it; neither where one
    is cut into pieces.
    """

    tokenizer: Tokenizer
    begin: int
    end: int | None

    @property
    def size(self) -> int:
        """One more than the largest token."""
        return 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())

    def to_json(self) -> bytes:
        return bytes(self.tokenizer.to_str(), "utf-8")

    def encode(self, pieces: Sequence[Piece]) -> list[NDArray[np.uint32]]:
        """Each piece's tokens, with the marks of a document that it begins or ends.

        Raises ConfigError: it cannot spell one.
        """
        cut = [parts(piece.text) for piece in pieces]
        found = iter(self._encoded([part for each in cut for part in each]))
        encoded = []
        for piece, each in zip(pieces, cut, strict=True):
            head = [self.begin] if piece.begins else []
            inside = [token for _ in each for token in next(found).ids]
            tail = [self.end] if piece.ends and self.end is not None else []
            encoded.append(np.asarray([*head, *inside, *tail], dtype=np.uint32))
        return encoded

    def _encoded(self, texts: Sequence[str]) -> list[Encoding]:
        try:
            with library_errors():
                return self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except ValueError as exc:
            raise ConfigError(
                f"data.tokenizer: it cannot spell a document: {exc}",
                do="name one that knows all letters, or has a token for those that it does not",
            ) from exc


def parts(text: str) -> list[str]:
    """The text, in parts of at most PART_CHARACTERS."""
    found = []
    while len(text) > PART_CHARACTERS:
        cut = max(text.rfind(space, PART_CHARACTERS // 2, PART_CHARACTERS) for space in "\n ")
        end = cut + 1 if cut > 0 else PART_CHARACTERS
        found.append(text[:end])
        text = text[end:]
    return [*found, text]


def learn_text(documents: Iterable[str], vocab: int) -> Vocabulary:
    """A byte-level BPE with at most `vocab` tokens.

    Raises ConfigError: fewer than there are bytes.
    """
    _require_vocab(vocab, TEXT_VOCAB_MIN, "a byte-level vocabulary")
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
    _begin_texts(tokenizer, END_OF_TEXT)
    return marked(tokenizer, END_OF_TEXT, None)


def learn_reads(documents: Iterable[str], vocab: int) -> Vocabulary:
    """A BPE over nucleotides with at most `vocab` tokens.

    Raises ConfigError: fewer than there are letters and marks.
    """
    _require_vocab(vocab, READS_VOCAB_MIN, "a vocabulary of reads")
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(READ_MARKS),
        initial_alphabet=list(NUCLEOTIDES),
        limit_alphabet=len(NUCLEOTIDES),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    _begin_texts(tokenizer, "[BOS]")
    return marked(tokenizer, "[BOS]", "[EOS]")


def _begin_texts(tokenizer: Tokenizer, mark: str) -> None:
    """Have whoever encodes a text with this tokenizer begin it as the model was taught."""
    special = [(mark, tokenizer.token_to_id(mark))]
    tokenizer.post_processor = processors.TemplateProcessing(f"{mark} $A", special_tokens=special)


def marked(tokenizer: Tokenizer, begin: str | None, end: str | None) -> Vocabulary:
    """`tokenizer` with these marks; for a `begin` of None the first usual one that it has, and the
    same for `end`.

    Raises ConfigError: it has no such token, or it is one that a document may spell.
    """
    tokenizer.encode_special_tokens = True
    if begin is None:
        begin = _usual(tokenizer, BEGINNINGS)
        end = end or _usual(tokenizer, ENDINGS)
    if begin is None:
        raise ConfigError(
            "the tokenizer has no token that usually begins a document",
            do='name it in the run file, such as data.begin = "<s>"',
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    last = None if end is None else _token(tokenizer, end, "end")
    return Vocabulary(tokenizer, _token(tokenizer, begin, "begin"), last)


def _usual(tokenizer: Tokenizer, names: Sequence[str]) -> str | None:
    """A special token if there is one so called: others may be of the text, such as HTML's."""
    has = [name for name in names if tokenizer.token_to_id(name) is not None]
    return next((name for name in has if not _spells(tokenizer, name)), None) or next(
        iter(has), None
    )


def _spells(tokenizer: Tokenizer, name: str) -> bool:
    """Whether a document that spells the name of this token would have it."""
    try:
        with library_errors():
            spelt = tokenizer.encode(name, add_special_tokens=False).ids
    except ValueError:
        return False
    return tokenizer.token_to_id(name) in spelt


def _token(tokenizer: Tokenizer, name: str, field: str) -> int:
    token = tokenizer.token_to_id(name)
    if token is None:
        raise ConfigError(
            f"the tokenizer has no token {name!r}",
            do=f"name one of its special tokens in data.{field}",
        )
    if _spells(tokenizer, name):
        raise ConfigError(
            f"the tokenizer's {name!r} is no special token: a text that spells it would have it, "
            "and be taken for two",
            do=f"name one of its special tokens in data.{field}",
        )
    return int(token)


def sample(documents: Iterable[str], seed: int, characters_max: int) -> list[str]:
    """A fair part of `documents`, in their order, of at most `characters_max`.

    Each has a draw, and those under a bar are kept; when they become too many, the bar is halved.
    """
    bar, held, kept = 2**64, 0, list[tuple[int, str]]()
    for draw, document in _with_draws(documents, seed):
        if draw >= bar:
            continue
        kept.append((draw, document))
        held += len(document)
        while held > characters_max and len(kept) > 1:
            bar //= 2
            kept = [each for each in kept if each[0] < bar]
            held = sum(len(text) for _, text in kept)
    return [document for _, document in kept]


def _with_draws(documents: Iterable[str], seed: int) -> Iterator[tuple[int, str]]:
    start, portion = 0, 4096
    drawn: list[int] = []
    for index, document in enumerate(documents):
        if index - start == len(drawn):
            start, drawn = index, draws(seed, "sample", index, portion).tolist()
        yield drawn[index - start], document


def _require_vocab(vocab: int, least: int, what: str) -> None:
    if vocab < least:
        raise ConfigError(f"vocab is {vocab}", do=f"{what} has at least {least}")

"""The vocabulary of a run: a tokenizer, which the organiser provides or which is learnt from a
sample of the documents, and its marks. A mark is a token that begins or ends a document.

For text we learn a byte-level BPE, which encodes any text without loss. For reads we learn a BPE
over nucleotides, with the special tokens at the ids of METAGENE-1 (arXiv 2501.02045): BOS 4 and EOS
5. If a document contains the name of a mark, that name is encoded as ordinary text: only the
packing code inserts marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from p2ptrain.data.piece import Piece
from p2ptrain.data.splitmix import draws
from p2ptrain.data.tokenizer_file import library_errors
from p2ptrain.errors import ConfigError

END_OF_TEXT = "<|endoftext|>"
TEXT_VOCAB_MIN = 257
"""Minimum vocabulary for text: 256 bytes and END_OF_TEXT, without merges."""

NUCLEOTIDES = "ACGTN"
READ_MARKS = ("[PAD]", "[UNK]", "[SEP]", "[MASK]", "[BOS]", "[EOS]")
READS_VOCAB_MIN = len(READ_MARKS) + len(NUCLEOTIDES)

BEGINNINGS = ("[BOS]", "<s>", "<bos>", "<|begin_of_text|>", "<|bos|>", END_OF_TEXT)
ENDINGS = ("[EOS]", "</s>", "<eos>", "<|end_of_text|>", "<|eos|>")
"""Common names of the tokens that begin and end a document, most likely first."""

SAMPLE_CHARACTERS_MAX = 32 * 10**6
"""Maximum number of characters to learn a tokenizer from. More text would hardly change the few
thousand merges of the tokenizer, and counting its words would take more memory."""

READS_SAMPLE_CHARACTERS_MAX = 8 * 10**6
"""Maximum number of characters of reads to learn a tokenizer from. Fewer than for text, because
each read is one word that occurs once, so counting is slow."""

PART_CHARACTERS = 2**16
"""Maximum number of characters in a part of a text. A longer text is divided, after a space or line
end if one is near."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer and its marks. `begin` precedes every document and `end`, if there is one,
    follows it. There are no marks between the pieces of a document.
    """

    tokenizer: Tokenizer
    begin: int
    end: int | None

    @property
    def size(self) -> int:
        """The largest token id plus one."""
        return 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())

    def to_json(self) -> bytes:
        return bytes(self.tokenizer.to_str(), "utf-8")

    def encode(self, pieces: Sequence[Piece]) -> list[NDArray[np.uint32]]:
        """Return each piece's tokens, with marks if it begins or ends a document.

        Raises ConfigError if the tokenizer cannot encode a piece.
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
                f"data.tokenizer: it cannot encode a document: {exc}",
                do="use a tokenizer that knows all characters, or has a token for unknown ones",
            ) from exc


def parts(text: str) -> list[str]:
    """Divide `text` into parts of at most PART_CHARACTERS."""
    found = []
    while len(text) > PART_CHARACTERS:
        cut = max(text.rfind(space, PART_CHARACTERS // 2, PART_CHARACTERS) for space in "\n ")
        end = cut + 1 if cut > 0 else PART_CHARACTERS
        found.append(text[:end])
        text = text[end:]
    return [*found, text]


def learn_text(documents: Iterable[str], vocab: int) -> Vocabulary:
    """Learn a byte-level BPE with at most `vocab` tokens.

    Raises ConfigError if `vocab` is below TEXT_VOCAB_MIN.
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
    """Learn a BPE over nucleotides with at most `vocab` tokens.

    Raises ConfigError if `vocab` is below READS_VOCAB_MIN.
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
    """Make the tokenizer add the mark before each text by default, as during training."""
    special = [(mark, tokenizer.token_to_id(mark))]
    tokenizer.post_processor = processors.TemplateProcessing(f"{mark} $A", special_tokens=special)


def marked(tokenizer: Tokenizer, begin: str | None, end: str | None) -> Vocabulary:
    """Return `tokenizer` with these marks. If `begin` is None, choose one of the common names, and
    choose `end` in the same way unless it is given (see `_usual`).

    Raises ConfigError if the tokenizer lacks a mark, or if a text can be encoded as a mark.
    """
    tokenizer.encode_special_tokens = True
    if begin is None:
        begin = _usual(tokenizer, BEGINNINGS)
        end = end or _usual(tokenizer, ENDINGS)
    if begin is None:
        raise ConfigError(
            "the tokenizer has none of the usual tokens for the start of a document",
            do='set such a token in the run file, as in data.begin = "<s>"',
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    last = None if end is None else _token(tokenizer, end, "end")
    return Vocabulary(tokenizer, _token(tokenizer, begin, "begin"), last)


def _usual(tokenizer: Tokenizer, names: Sequence[str]) -> str | None:
    """Return the first of `names` that the tokenizer has as a special token. If there is none,
    return the first that it has at all; this may be ordinary text, such as an HTML tag.
    """
    has = [name for name in names if tokenizer.token_to_id(name) is not None]
    special = [name for name in has if not _spells(tokenizer, name)]
    return next(iter(special + has), None)


def _spells(tokenizer: Tokenizer, name: str) -> bool:
    """Return whether a document that contains the name of this token is encoded with it."""
    try:
        with library_errors():
            spelt = tokenizer.encode(name, add_special_tokens=False).ids
    except ValueError:
        return False
    return tokenizer.token_to_id(name) in spelt


def _token(tokenizer: Tokenizer, name: str, field: str) -> int:
    token, do = tokenizer.token_to_id(name), f"set data.{field} to one of its special tokens"
    if token is None:
        raise ConfigError(f"the tokenizer has no token {name!r}", do=do)
    if _spells(tokenizer, name):
        raise ConfigError(
            f"the tokenizer's {name!r} is not a special token: a text that contains these "
            "characters would produce the same token",
            do=do,
        )
    return int(token)


def sample(documents: Iterable[str], seed: int, characters_max: int) -> list[str]:
    """Return a random sample of `documents`, in their order, of at most `characters_max`.

    Each document is assigned a random number, and documents whose number is below a threshold are
    kept. If the kept documents become too long in total, the threshold is halved. The last one
    that is left may exceed the limit.
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
        raise ConfigError(f"vocab is {vocab}", do=f"{what} needs at least {least}")

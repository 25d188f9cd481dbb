"""The text of all arms: sequences for training and for validation, tokenised once and cached.

The packer that makes the blocks of runs shuffles the sequences. The seed of an arm shuffles them
again, so that arms with equal seeds see equal tokens in equal order.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p2ptrain.data.blocks import Tokens, decode_block
from p2ptrain.data.pack import PackSpec, pack
from p2ptrain.data.text import standard_library_text
from scripts.research.learning.settings import Settings


@dataclass(frozen=True, slots=True)
class Corpus:
    """Rows of sequence + 1 tokens.

    `strangers` are held-out rows from documents that are not trained on. They are None if the rows
    of `validation` come from such documents.
    """

    train: Tokens
    validation: Tokens
    strangers: Tokens | None = None

    @property
    def digest(self) -> str:
        """The digest of these tokens. A different Python version has a different library and text.

        The digest does not cover the strangers, since they come from the same text.
        """
        hasher = hashlib.blake2b(digest_size=8)
        for rows in (self.train, self.validation):
            hasher.update(np.ascontiguousarray(rows).data)
        return hasher.hexdigest()

    def drawn(self, count: int, seed: int, draw: int = 0) -> Corpus:
        """Return a corpus that holds out `count` sequences drawn from the training sequences.

        The sequences that were held out before become its strangers.
        """
        random = np.random.Generator(np.random.Philox(key=seed + (draw << 64)))
        order = random.permutation(len(self.train))
        kept = self.train[np.sort(order[count:])]
        return Corpus(kept, self.train[order[:count]], self.validation)

    def rows(self, seed: int, first: int, count: int) -> Tokens:
        """Return `count` rows, starting at `first`. `seed` and the pass determine the order."""
        places = np.arange(first, first + count)
        passes, at = np.divmod(places, len(self.train))
        orders = {int(each): _order(seed, int(each), len(self.train)) for each in set(passes)}
        return self.train[[orders[int(p)][a] for p, a in zip(passes, at, strict=True)]].astype(
            np.int64
        )


_ORDERS: dict[tuple[int, int, int], np.ndarray] = {}


def _order(seed: int, number: int, length: int) -> np.ndarray:
    """Return the order of one pass. A few orders are cached, for passes in use at the same time."""
    key = (seed, number, length)
    if key not in _ORDERS:
        if len(_ORDERS) > 2:
            _ORDERS.clear()
        random = np.random.Generator(np.random.Philox(key=seed + (number << 64)))
        _ORDERS[key] = random.permutation(length)
    return _ORDERS[key]


def corpus_for(settings: Settings, folder: Path) -> Corpus:
    """Return the corpus of these settings, read from `folder` if it was made before."""
    path = kept_at(settings, folder)
    if not path.exists():
        _make(settings, path)
    with np.load(path) as kept:
        corpus = Corpus(kept["train"], kept["validation"])
    text = settings.text
    if not text.drawn_sequences:
        return corpus
    return corpus.drawn(text.drawn_sequences, text.seed, text.draw)


def kept_at(settings: Settings, folder: Path) -> Path:
    """Return the file in `folder` with the corpus before sequences are drawn from it."""
    text, model = settings.text, settings.model
    name = f"text-{model.vocab}-{model.sequence}-{text.limit_bytes}-{text.seed}"
    return folder / f"{name}-{text.validation_sequences}.npz"


def _make(settings: Settings, path: Path) -> None:
    text, model = settings.text, settings.model
    spec = PackSpec(
        vocab=model.vocab,
        sequence=model.sequence,
        block_sequences=1,
        validation_blocks=text.validation_sequences,
        seed=text.seed,
    )
    packed = pack(standard_library_text(text.limit_bytes), spec)

    def rows(blocks: tuple[bytes, ...]) -> Tokens:
        read = [decode_block(each, vocab=model.vocab, sequence=model.sequence) for each in blocks]
        return np.concatenate(read).astype(np.uint16 if model.vocab <= 2**16 else np.uint32)

    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(making, train=rows(packed.train), validation=rows(packed.validation))
    os.replace(making, path)

"""The text of all arms, tokenised once and kept beside the work: sequences to train on, and others.

The same packer makes it as makes a run's blocks. Sequences were shuffled there; a seed of an arm
shuffles them once more, so that arms with equal seeds see equal tokens in equal order.
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
    """Rows of sequence + 1 tokens. `strangers` are held out, too: of documents of which nothing is
    trained on. There are none where all that is held out is of such documents.
    """

    train: Tokens
    validation: Tokens
    strangers: Tokens | None = None

    @property
    def digest(self) -> str:
        """Names the tokens: another Python's library is another text. Strangers are cut from it by
        the same rule.
        """
        hasher = hashlib.blake2b(digest_size=8)
        for rows in (self.train, self.validation):
            hasher.update(np.ascontiguousarray(rows).data)
        return hasher.hexdigest()

    def drawn(self, count: int, seed: int, draw: int = 0) -> Corpus:
        """Held out are `count` sequences drawn from all that were to be trained on, and, as
        strangers, what was held out before.
        """
        random = np.random.Generator(np.random.Philox(key=seed + (draw << 64)))
        order = random.permutation(len(self.train))
        kept = self.train[np.sort(order[count:])]
        return Corpus(kept, self.train[order[:count]], self.validation)

    def rows(self, seed: int, first: int, count: int) -> Tokens:
        """`count` rows from place `first` on, in the order of `seed`; each pass has its own."""
        places = np.arange(first, first + count)
        passes, at = np.divmod(places, len(self.train))
        orders = {int(each): _order(seed, int(each), len(self.train)) for each in set(passes)}
        return self.train[[orders[int(p)][a] for p, a in zip(passes, at, strict=True)]].astype(
            np.int64
        )


_ORDERS: dict[tuple[int, int, int], np.ndarray] = {}


def _order(seed: int, number: int, length: int) -> np.ndarray:
    """Kept for the two passes of one seed that may be open."""
    key = (seed, number, length)
    if key not in _ORDERS:
        if len(_ORDERS) > 2:
            _ORDERS.clear()
        random = np.random.Generator(np.random.Philox(key=seed + (number << 64)))
        _ORDERS[key] = random.permutation(length)
    return _ORDERS[key]


def corpus_for(settings: Settings, folder: Path) -> Corpus:
    """The corpus of these settings, from `folder` if it was made before."""
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
    """Where `folder` has the corpus of these settings, before any sequences are drawn from it."""
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

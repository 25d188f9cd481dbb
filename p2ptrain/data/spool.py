"""Keep encoded pieces (parts of documents) on disk until it is known which are for validation.

There are two files: the tokens of all pieces, and the length of each piece. At most a portion of
each file, or one piece, is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from p2ptrain.data.splitmix import draws


@dataclass(frozen=True, slots=True)
class Portion:
    """The maximum number of tokens, and of piece lengths, held in memory at once."""

    tokens: int = 2**21
    pieces: int = 2**16


USUAL_PORTION = Portion()

_LENGTH = np.dtype("<u4")

Tokens = NDArray[np.unsignedinteger[Any]]


class Spool:
    """The pieces on disk, in the order in which they were added."""

    def __init__(self, folder: Path, token_dtype: str, portion: Portion = USUAL_PORTION) -> None:
        self._portion = portion
        self._dtype = np.dtype(token_dtype)
        self._tokens = (folder / "tokens").open("w+b")
        self._lengths = (folder / "lengths").open("w+b")
        self.tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._tokens.close()
        self._lengths.close()

    def extend(self, pieces: Sequence[Tokens]) -> None:
        for piece in pieces:
            self._tokens.write(piece.astype(self._dtype).tobytes())
        lengths = np.array([len(piece) for piece in pieces], dtype=_LENGTH)
        self._lengths.write(lengths.tobytes())
        self.tokens += int(lengths.sum(dtype=np.int64))

    def portions(self) -> Iterator[tuple[int, Tokens, Tokens]]:
        """Yield (index of the first piece, lengths, tokens) for several pieces at a time."""
        self._tokens.seek(0)
        first = 0
        for lengths in _read_all(self._lengths, _LENGTH, self._portion.pieces):
            ends = np.cumsum(lengths, dtype=np.int64)
            start = 0
            while start < len(lengths):
                before = int(ends[start - 1]) if start else 0
                fit = int(np.searchsorted(ends, before + self._portion.tokens, side="right"))
                stop = max(fit, start + 1)
                count = int(ends[stop - 1]) - before
                tokens = np.frombuffer(self._tokens.read(count * self._dtype.itemsize), self._dtype)
                yield first + start, lengths[start:stop], tokens
                start = stop
            first += len(lengths)

    def choose(self, tokens: int, seed: int) -> tuple[NDArray[np.int64], int]:
        """Choose pieces at random until they have at least `tokens` in total, or all pieces. Return
        their sorted indices and their number of tokens.
        """
        drawn = np.zeros(0, dtype=np.uint64)
        numbers = lengths = np.zeros(0, dtype=np.int64)
        first = 0
        for more in _read_all(self._lengths, _LENGTH, self._portion.pieces):
            drawn = np.concatenate([drawn, draws(seed, "validation", first, len(more))])
            numbers = np.concatenate([numbers, np.arange(first, first + len(more))])
            lengths = np.concatenate([lengths, more.astype(np.int64)])
            order = np.argsort(drawn, kind="stable")
            enough = int(np.searchsorted(np.cumsum(lengths[order]), tokens)) + 1
            order = order[:enough]
            drawn, numbers, lengths = drawn[order], numbers[order], lengths[order]
            first += len(more)
        return np.sort(numbers), int(lengths.sum())


def _read_all(file: IO[bytes], dtype: np.dtype[Any], portion: int) -> Iterator[Tokens]:
    """Yield the file's numbers, `portion` at a time. Do not change the file's position
    meanwhile."""
    file.seek(0)
    while data := file.read(portion * dtype.itemsize):
        yield np.frombuffer(data, dtype)

"""The sketch of a vector in numpy. This module defines the correct results; it is not fast.

Definition. The vector is cut into rows of 256 elements; the first row begins at element 0. Each
element is divided by the unit, 2^`unit_exponent`, and rounded to an integer, ties to even. The seed
gives each row 256 signs and a rotation. Bucket b of the sketch is the sum over all rows of the
element that the row's rotation moves to column b, times its sign. The sums are exact integers, so
the order of the additions, the number of threads and the processor do not matter.

    word j of row r    number 5 r + j of splitmix64 from the seed, j = 0 … 4
    sign of column c   −1 if bit c mod 64 of word c div 64 is set, else +1
    rotation           the upper 8 bits of word 4; column c moves to (c + rotation) mod 256

The native kernel gives the same bits; see `sketches`, which says what sketches are for.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from p2ptrain.kernels.sketches import WIDTH, Sums

_ELEMENT_MAX = 2.0**31
_ROWS = 2048
"""Rows that are added together. Sums of so many elements are below 2^42, so fp64 is exact; and the
temporary arrays (8 MB in total) stay in most caches."""

_WORDS = 5
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def sketch(values: NDArray[np.float32], seed: int, unit_exponent: int, first: int = 0) -> Sums:
    """Return the sketch of the elements from `first` on of a vector. The sketches of the parts of a
    vector add up to the sketch of the vector, exactly.

    `values` is one-dimensional, of any length, and `first` any element that is not negative.

    Raises ValueError: a value is not finite, or more than twice the bound that gave the unit. Check
    the peak of a contribution first.
    """
    by_rotation = np.zeros((WIDTH, WIDTH), np.int64)
    scale = math.ldexp(1.0, -unit_exponent)
    row, skipped = divmod(first, WIDTH)
    at = 0
    while at < values.size:
        piece = values[at : at + _ROWS * WIDTH - skipped]
        _add_rows(by_rotation, _rows_of(piece, skipped, scale), seed, row)
        at, row, skipped = at + piece.size, row + _ROWS, 0
    return _rotated(by_rotation)


def _rows_of(piece: NDArray[np.float32], skipped: int, scale: float) -> NDArray[np.float64]:
    """Return the elements in units as rows, with zeros before and after them."""
    rows = -(-(skipped + piece.size) // WIDTH)
    flat = np.zeros(rows * WIDTH, np.float64)
    inside = flat[skipped : skipped + piece.size]
    np.multiply(piece, scale, out=inside, dtype=np.float64)
    top = max(float(inside.max()), -float(inside.min()))
    if not top <= _ELEMENT_MAX:
        raise ValueError("a value is not finite or is too large for the sketch's unit")
    np.rint(inside, out=inside)
    return flat.reshape(rows, WIDTH)


def _add_rows(by_rotation: Sums, rows: NDArray[np.float64], seed: int, first_row: int) -> None:
    """Add rows, with their signs, to the sums of the rows that are rotated alike. Overwrites
    `rows`."""
    words = _words(seed, first_row, len(rows))
    flipped = np.unpackbits(words[:, :4].astype("<u8").view(np.uint8), axis=1, bitorder="little")
    rows *= _SIGNS[flipped]
    rotations = (words[:, 4] >> np.uint64(56)).astype(np.int64)
    order = np.argsort(rotations, kind="stable")
    ordered = rotations[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    sums = np.add.reduceat(rows[order], starts, axis=0)
    by_rotation[ordered[starts]] += sums.astype(np.int64)


_SIGNS = np.array([1.0, -1.0])


def _rotated(by_rotation: Sums) -> Sums:
    columns = np.arange(WIDTH)
    turned = by_rotation[columns[:, None], (columns[None, :] - columns[:, None]) % WIDTH]
    return np.asarray(turned.sum(axis=0), np.int64)


def _words(seed: int, first_row: int, rows: int) -> NDArray[np.uint64]:
    """Return the words of these rows: [rows, 5]. Multiplication modulo 2^64 is intended."""
    first = _WORDS * first_row
    place = np.arange(first + 1, first + 1 + _WORDS * rows, dtype=np.uint64)
    mixed = np.uint64(seed) + place * _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return (mixed ^ (mixed >> np.uint64(31))).reshape(rows, _WORDS)

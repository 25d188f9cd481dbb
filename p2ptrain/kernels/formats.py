"""The format of each codec's blocks, in numpy. The native code must give the same bits.

cython/codec_impl.h explains the formats and their limits. This module handles only blocks;
`reference` splits vectors into blocks and does the rest of the arithmetic.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2ptrain.kernels.codecs import CodecName

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]

AMAX_MIN = np.float32(2.0**-100)
AMAX_MAX = np.float32(2.0**100)


class Format(Protocol):
    """The format of a block of `n` elements. Blocks of the same length are handled together, as the
    rows of arrays: values (blocks, n) and bytes (blocks, `row_bytes(n)`).
    """

    def row_bytes(self, n: int) -> int: ...
    def encode(self, rows: Floats) -> Bytes: ...
    def decode(self, rows: Bytes, n: int) -> Floats: ...
    def peak(self, rows: Bytes) -> Floats:
        """Return the largest magnitude that `encode` can have written into each valid block."""

    def can_encode(self, amax: Floats) -> Flags:
        """Return which of these largest magnitudes are in range. A NaN is not."""
        return amax <= AMAX_MAX

    def fine(self, rows: Bytes) -> Flags:
        """Return which blocks `encode` could have written; scales are checked, but not codes."""
        return self.can_encode(self.peak(rows))


class Fp32(Format):
    def row_bytes(self, n: int) -> int:
        return 4 * n

    def encode(self, rows: Floats) -> Bytes:
        return _bytes_of(rows)

    def decode(self, rows: Bytes, n: int) -> Floats:
        return _floats_of(rows)

    def peak(self, rows: Bytes) -> Floats:
        top: Floats = np.abs(_floats_of(rows)).max(axis=1)
        return top


class Fp16(Format):
    def row_bytes(self, n: int) -> int:
        return 2 * n

    def can_encode(self, amax: Floats) -> Flags:
        return amax < np.float32(65520)

    def encode(self, rows: Floats) -> Bytes:
        with np.errstate(under="ignore"):
            return _bytes_of(rows.astype(np.float16))

    def decode(self, rows: Bytes, n: int) -> Floats:
        return np.ascontiguousarray(rows).view(np.float16).astype(np.float32)

    def peak(self, rows: Bytes) -> Floats:
        halves = np.ascontiguousarray(rows).view(np.float16)
        top: Floats = np.abs(halves).max(axis=1).astype(np.float32)
        return top


class Int8(Format):
    LARGEST = np.float32(127)

    def row_bytes(self, n: int) -> int:
        return 4 + n

    def encode(self, rows: Floats) -> Bytes:
        used, kept = _amax_to_scale_by(rows)
        scales = used / self.LARGEST * kept
        codes = _codes_of(rows, self.LARGEST / used * kept)
        return np.concatenate([_bytes_of(scales), codes.view(np.uint8)], axis=1)

    def decode(self, rows: Bytes, n: int) -> Floats:
        return rows[:, 4:].view(np.int8).astype(np.float32) * _floats_of(rows[:, :4])

    def fine(self, rows: Bytes) -> Flags:
        return _within(_floats_of(rows[:, :4]), 2.0**-107, 2.0**94)

    def peak(self, rows: Bytes) -> Floats:
        return _floats_of(rows[:, :4])[:, 0] * self.LARGEST


class Int4(Format):
    LARGEST = np.float32(7)

    def row_bytes(self, n: int) -> int:
        return 2 + (n + 1) // 2

    def encode(self, rows: Floats) -> Bytes:
        used, kept = _amax_to_scale_by(rows)
        exact = _bytes_of(used / self.LARGEST).view(np.uint32)
        upper = ((exact + np.uint32(0xFFFF)) >> 16).astype(np.uint16)
        inverse = np.float32(1) / self._scales(upper) * kept
        codes = _codes_of(rows, inverse).view(np.uint8) & 15
        half = (codes.shape[1] + 1) // 2
        low, high = codes[:, :half], np.zeros((len(codes), half), np.uint8)
        high[:, : codes.shape[1] - half] = codes[:, half:]
        upper = upper * kept.astype(np.uint16)
        return np.concatenate([_bytes_of(upper), low | high << 4], axis=1)

    def decode(self, rows: Bytes, n: int) -> Floats:
        packed = rows[:, 2:]
        low, high = (packed << 4).view(np.int8) >> 4, packed.view(np.int8) >> 4
        codes = np.concatenate([low, high], axis=1)[:, :n]
        return codes.astype(np.float32) * self._scales_in(rows)

    def fine(self, rows: Bytes) -> Flags:
        return _within(self._scales_in(rows), 2.0**-103, 2.0**98)

    def peak(self, rows: Bytes) -> Floats:
        return self._scales_in(rows)[:, 0] * self.LARGEST

    def _scales_in(self, rows: Bytes) -> Floats:
        return self._scales(np.ascontiguousarray(rows[:, :2]).view(np.uint16))

    def _scales(self, upper: NDArray[np.uint16]) -> Floats:
        return (upper.astype(np.uint32) << 16).view(np.float32)


FORMATS: dict[CodecName, Format] = {"fp32": Fp32(), "fp16": Fp16(), "int8": Int8(), "int4": Int4()}


def _bytes_of(values: NDArray[Any]) -> Bytes:
    """Return rows of values as rows of bytes."""
    return np.ascontiguousarray(values).view(np.uint8)


def _floats_of(rows: Bytes) -> Floats:
    return np.ascontiguousarray(rows).view(np.float32)


def _amax_to_scale_by(rows: Floats) -> tuple[Floats, Floats]:
    """Return two columns: each row's largest magnitude, by which the row is scaled, and 1, which
    keeps the row's codes. For a row that is too small to scale, return 1 and 0, so that its scale
    and its codes become 0.
    """
    amax = np.abs(rows).max(axis=1, keepdims=True)
    large = amax >= AMAX_MIN
    return np.where(large, amax, np.float32(1)), large.astype(np.float32)


def _codes_of(rows: Floats, inverse: Floats) -> NDArray[np.int8]:
    codes: NDArray[np.int8] = np.rint(rows * inverse).astype(np.int8)
    return codes


def _within(scales: Floats, least: float, most: float) -> Flags:
    """Return which rows' scales are +0 or from `least` to `most`."""
    with np.errstate(invalid="ignore"):
        zero = (scales == 0) & ~np.signbit(scales)
        fine: Flags = zero | ((scales >= least) & (scales <= most))
    return fine[:, 0]

"""The codecs in numpy. This module defines the correct results; it is not fast.

The native kernels give the same bits. Each fp32 operation is rounded to nearest even, in the order
given in cython/codec_impl.h. Codecs have the methods, arguments and faults of `kernels.Codec`,
without `variant`. `formats` defines the content of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2ptrain.kernels.codecs import BadScale, CodecName, NonFinite
from p2ptrain.kernels.formats import AMAX_MAX, FORMATS, Bytes, Floats


@dataclass(frozen=True, slots=True)
class ReferenceCodec:
    name: CodecName
    block: int

    def encoded_bytes(self, numel: int) -> int:
        return sum(blocks * FORMATS[self.name].row_bytes(n) for _, blocks, n in self._groups(numel))

    def check(self, payload: Bytes, numel: int) -> None:
        """Raise BadScale for the first invalid block. The shorter block at the end comes last."""
        first = 0
        for rows, _ in self._rows_of(payload, numel):
            fine = FORMATS[self.name].fine(rows)
            if not fine.all():
                raise BadScale(first + int(np.argmin(fine)))
            first += len(rows)

    def peak(self, payload: Bytes, numel: int) -> float:
        self.check(payload, numel)
        tops = [FORMATS[self.name].peak(rows).max() for rows, _ in self._rows_of(payload, numel)]
        return float(max(tops, default=0.0))

    def quantise(self, src: Floats, out: Bytes) -> float:
        first = at = 0
        for start, blocks, n in self._groups(src.size):
            rows = src[start : start + blocks * n].reshape(blocks, n)
            fine = FORMATS[self.name].can_encode(np.abs(rows).max(axis=1))
            if not fine.all():
                raise NonFinite(first + int(np.argmin(fine)))
            encoded = FORMATS[self.name].encode(rows)
            out[at : at + encoded.size] = encoded.reshape(-1)
            first, at = first + blocks, at + encoded.size
        return self.peak(out, src.size)

    def dequantise(self, payload: Bytes, out: Floats) -> None:
        self.check(payload, out.size)
        rows = [FORMATS[self.name].decode(rows, n) for rows, n in self._rows_of(payload, out.size)]
        out[:] = np.concatenate([np.empty(0, np.float32), *(each.reshape(-1) for each in rows)])

    def quantise_difference(
        self,
        theta: Floats,
        local: Floats,
        weight: float,
        out: Bytes,
        *,
        residual: Floats | None = None,
        residual_out: Floats | None = None,
    ) -> float:
        total = _with(_own(theta, local, weight), residual)
        return self._settle(total, np.float32(1), out, residual_out)

    def add_difference(
        self,
        payload: Bytes,
        theta: Floats,
        local: Floats | None,
        weight: float,
        total: Floats,
        *,
        residual: Floats | None = None,
    ) -> float:
        with np.errstate(invalid="ignore", over="ignore"):
            added = self._values(payload, theta.size) + _own(theta, local, weight)
        total[:] = _with(added, residual)
        return self.peak(payload, theta.size)

    def add_difference_requantise(
        self,
        payload: Bytes,
        theta: Floats,
        local: Floats | None,
        weight: float,
        divisor: float,
        out: Bytes,
        *,
        residual: Floats | None = None,
        residual_out: Floats | None = None,
    ) -> tuple[float, float]:
        total = np.empty_like(theta)
        read = self.add_difference(payload, theta, local, weight, total, residual=residual)
        return read, self._settle(total, np.float32(divisor), out, residual_out)

    def outer_step(
        self, theta: Floats, momentum: Floats, payload: Bytes, lr: float, mu: float
    ) -> None:
        delta = self._values(payload, theta.size)
        rate, keep = np.float32(lr), np.float32(mu)
        with np.errstate(over="ignore", invalid="ignore"):
            momentum[:] = keep * momentum + delta
            theta[:] = theta - rate * (delta + keep * momentum)

    def _settle(
        self, total: Floats, divisor: np.float32, out: Bytes, residual_out: Floats | None
    ) -> float:
        with np.errstate(invalid="ignore", over="ignore"):
            made = self.quantise(total / divisor, out)
            if residual_out is not None:
                residual_out[:] = total - divisor * self._values(out, total.size)
                wrong = ~(np.abs(residual_out) <= AMAX_MAX)
                if wrong.any():
                    raise NonFinite(int(np.argmax(wrong)) // self.block)
        return made

    def _values(self, payload: Bytes, numel: int) -> Floats:
        values = np.empty(numel, np.float32)
        self.dequantise(payload, values)
        return values

    def _groups(self, numel: int) -> list[tuple[int, int, int]]:
        """Return (first element, number of blocks, block length) for the whole blocks and for the
        tail.
        """
        whole, tail = divmod(numel, self.block)
        groups = [(0, whole, self.block), (whole * self.block, 1, tail)]
        return [(start, blocks, n) for start, blocks, n in groups if blocks and n]

    def _rows_of(self, payload: Bytes, numel: int) -> list[tuple[Bytes, int]]:
        """Return the payload's groups as rows of bytes, each with its block length."""
        found, at = [], 0
        for _, blocks, n in self._groups(numel):
            size = blocks * FORMATS[self.name].row_bytes(n)
            found.append((payload[at : at + size].reshape(blocks, -1), n))
            at += size
        return found


codec = ReferenceCodec


def _own(theta: Floats, local: Floats | None, weight: float) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.float32(weight) * (theta if local is None else theta - local)


def _with(total: Floats, residual: Floats | None) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        return total if residual is None else total + residual

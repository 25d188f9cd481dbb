"""Vectors that kernels often handle wrongly, and the codec implementations, which must agree."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from p2ptrain import kernels
from p2ptrain.kernels import reference

SIZES = (0, 1, 7, 31, 32, 33, 255, 256, 257, 4095)
BLOCKS = (1, 7, 32, 64, 256, 4096)
RANGE = {"fp32": 2.0**100, "fp16": 65519.0, "int8": 2.0**100, "int4": 2.0**100}
"""The largest magnitude that each codec accepts."""

Array = np.ndarray
variants = pytest.mark.parametrize("variant", kernels.VARIANTS)
implementations = pytest.mark.parametrize("kind", [*kernels.VARIANTS, "reference"])
codecs = pytest.mark.parametrize("name", kernels.CODECS)


class Forced:
    """A native codec that uses the same variant in all calls."""

    def __init__(self, codec: kernels.Codec, variant: str) -> None:
        self._codec = codec
        self._variant = variant
        self.encoded_bytes = codec.encoded_bytes

    def __getattr__(self, method: str) -> Any:
        return partial(getattr(self._codec, method), variant=self._variant)


def implementation(kind: str, name: kernels.CodecName, block: int) -> Any:
    """Return the reference codec, or the native codec with `kind` as its variant."""
    if kind == "reference":
        return reference.codec(name, block)
    return Forced(kernels.codec(name, block), kind)


def mixed(numel: int, seed: int, name: str = "int8") -> Array:
    """Return a vector of segments of very different magnitude: normal, denormal, zeros of both
    signs, huge, ties.
    """
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(numel).astype(np.float32)
    kind = np.arange(numel) // 37 % 7
    values[kind == 1] *= np.float32(1e-42)
    values[kind == 2] = np.where(values[kind == 2] > 0, 0.0, -0.0)
    values[kind == 3] *= np.float32(RANGE[name] / 2**10)
    values[kind == 4] = np.round(values[kind == 4] * 8) / 2
    values[kind == 5] *= np.float32(2.0**-100)
    values[kind == 6] *= np.float32(2.0**-18)
    return values


def tame(numel: int, seed: int, name: str = "int8") -> Array:
    """Return `mixed(…)` scaled down, so that sums of a few such vectors with large weights stay in
    range.
    """
    return mixed(numel, seed, name) / np.float32(2**13 if name == "fp16" else 1e10)


def encoded(name: kernels.CodecName, block: int, values: Array) -> Array:
    codec = reference.codec(name, block)
    out = np.empty(codec.encoded_bytes(values.size), np.uint8)
    codec.quantise(values, out)
    return out


def unaligned(values: Array) -> Array:
    raw = np.empty(values.nbytes + 1, np.uint8)[1:]
    raw[:] = values.view(np.uint8)
    return raw.view(values.dtype)

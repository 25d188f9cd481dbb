"""Native arithmetic on pseudo-gradients, bit-identical on all machines. See `codecs`.

The functions here are the int8 codec, block by block length; `codec` gives them all as one object.
"""

from __future__ import annotations

from p2ptrain.kernels.codecs import (
    BLOCK_MAX,
    CODECS,
    VARIANTS,
    Bytes,
    Codec,
    CodecName,
    Floats,
    codec,
)
from p2ptrain.kernels.faults import BadScale, NonFinite

__all__ = [
    "BLOCK_MAX",
    "CODECS",
    "VARIANTS",
    "BadScale",
    "Bytes",
    "Codec",
    "CodecName",
    "Floats",
    "NonFinite",
    "add_difference_requantise",
    "check",
    "codec",
    "dequantise",
    "encoded_bytes",
    "outer_step",
    "quantise",
    "quantise_difference",
]


def encoded_bytes(numel: int, block: int) -> int:
    return codec("int8", block).encoded_bytes(numel)


def quantise(src: Floats, out: Bytes, block: int) -> None:
    codec("int8", block).quantise(src, out)


def dequantise(payload: Bytes, out: Floats, block: int) -> None:
    codec("int8", block).dequantise(payload, out)


def quantise_difference(
    theta: Floats, local: Floats, weight: float, out: Bytes, block: int
) -> None:
    codec("int8", block).quantise_difference(theta, local, weight, out)


def add_difference_requantise(
    payload: Bytes,
    theta: Floats,
    local: Floats,
    weight: float,
    divisor: float,
    out: Bytes,
    block: int,
) -> None:
    codec("int8", block).add_difference_requantise(payload, theta, local, weight, divisor, out)


def outer_step(
    theta: Floats, momentum: Floats, payload: Bytes, lr: float, mu: float, block: int
) -> None:
    codec("int8", block).outer_step(theta, momentum, payload, lr, mu)


def check(payload: Bytes, numel: int, block: int) -> None:
    codec("int8", block).check(payload, numel)

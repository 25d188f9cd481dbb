"""The int8 kernels in numpy: this module defines what is correct, and is not meant to be fast.

The native kernels give the same bits. Each line is one fp32 operation, rounded to nearest even, in
the order written in cython/int8_impl.h, which also explains the format and its limits. Functions
have the names, arguments and faults of `p2ptrain.kernels`, without `variant`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2ptrain.kernels.faults import BadScale, NonFinite

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

AMAX_MIN = np.float32(2.0**-100)
AMAX_MAX = np.float32(2.0**100)
SCALE_MIN = np.float32(2.0**-107)
SCALE_MAX = np.float32(2.0**94)
LARGEST_CODE = np.float32(127)


def _blocks_of(numel: int, block: int) -> int:
    return -(-numel // block)


def _in_blocks(values: Floats, block: int) -> Floats:
    """`values` as rows of `block` elements, the last filled up with zeros, which change no amax."""
    rows = np.zeros((_blocks_of(values.size, block), block), np.float32)
    rows.reshape(-1)[: values.size] = values
    return rows


def _payload_rows(numel: int, block: int) -> tuple[int, int]:
    """How many whole blocks `numel` elements have, and the bytes that these make."""
    whole = numel // block
    return whole, whole * (block + 4)


def _interleave(
    scales: Floats, codes: NDArray[np.int8], numel: int, block: int, out: Bytes
) -> None:
    whole, whole_bytes = _payload_rows(numel, block)
    rows = out[:whole_bytes].reshape(whole, block + 4)
    rows[:, :4] = scales[:whole].reshape(-1, 1).view(np.uint8)
    rows[:, 4:] = codes[:whole].view(np.uint8)
    if whole_bytes < out.size:
        out[whole_bytes : whole_bytes + 4] = scales[whole:].view(np.uint8)
        out[whole_bytes + 4 :] = codes[whole, : numel - whole * block].view(np.uint8)


def _scales_of(payload: Bytes, numel: int, block: int) -> Floats:
    starts = np.arange(_blocks_of(numel, block)) * (block + 4)
    scales: Floats = payload[starts[:, None] + np.arange(4)].reshape(-1).view(np.float32)
    return scales


def _codes_of(payload: Bytes, numel: int, block: int) -> NDArray[np.int8]:
    position = np.arange(numel)
    codes: NDArray[np.int8] = payload[position + 4 * (position // block + 1)].view(np.int8)
    return codes


def _delta_of(payload: Bytes, numel: int, block: int) -> Floats:
    check(payload, numel, block)
    scales = np.repeat(_scales_of(payload, numel, block), block)[:numel]
    return _codes_of(payload, numel, block).astype(np.float32) * scales


def check(payload: Bytes, numel: int, block: int) -> None:
    scales = _scales_of(payload, numel, block)
    with np.errstate(invalid="ignore"):
        zero = (scales == 0) & ~np.signbit(scales)
        fine = zero | ((scales >= SCALE_MIN) & (scales <= SCALE_MAX))
    if not fine.all():
        raise BadScale(int(np.argmin(fine)))


def quantise(src: Floats, out: Bytes, block: int) -> None:
    rows = _in_blocks(src, block)
    amax = np.abs(rows).max(axis=1)
    fine = amax <= AMAX_MAX
    if not fine.all():
        raise NonFinite(int(np.argmin(fine)))
    used = np.where(amax >= AMAX_MIN, amax, np.float32(1))
    kept = (amax >= AMAX_MIN).astype(np.float32)
    scales = used / LARGEST_CODE * kept
    inverse = LARGEST_CODE / used * kept
    codes = np.rint(rows * inverse[:, None]).astype(np.int8)
    _interleave(scales, codes, src.size, block, out)


def dequantise(payload: Bytes, out: Floats, block: int) -> None:
    out[:] = _delta_of(payload, out.size, block)


def quantise_difference(
    theta: Floats, local: Floats, weight: float, out: Bytes, block: int
) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        own = np.float32(weight) * (theta - local)
    quantise(own, out, block)


def add_difference_requantise(
    payload: Bytes,
    theta: Floats,
    local: Floats,
    weight: float,
    divisor: float,
    out: Bytes,
    block: int,
) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        own = np.float32(weight) * (theta - local)
        total = (_delta_of(payload, theta.size, block) + own) / np.float32(divisor)
    quantise(total.astype(np.float32, copy=False), out, block)


def outer_step(
    theta: Floats, momentum: Floats, payload: Bytes, lr: float, mu: float, block: int
) -> None:
    delta = _delta_of(payload, theta.size, block)
    rate, keep = np.float32(lr), np.float32(mu)
    with np.errstate(over="ignore", invalid="ignore"):
        momentum[:] = keep * momentum + delta
        theta[:] = theta - rate * (delta + keep * momentum)

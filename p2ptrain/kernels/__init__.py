"""Compressing, adding and applying pseudo-gradients: the only arithmetic that peers must agree on.

Arrays are one-dimensional, C-contiguous float32 of any length and alignment; payloads are buffers
of bytes of exactly `encoded_bytes(numel, block)`. Outputs are given by the caller, since a fresh
page costs more than any kernel. The GIL is released. Results are bit-identical in all variants and
on all machines to `kernels.reference`; the format and its limits are in cython/int8_impl.h.

It does not know of peers, parts or steps. After a fault the output holds nothing of use, except
that `outer_step` checks all scales before it changes anything.

Raises, throughout: ValueError or TypeError for buffers that do not fit together (our bug), BadScale
for a payload that no codec wrote, NonFinite for values that cannot be quantised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2ptrain.errors import MachineUnfit
from p2ptrain.kernels import _int8
from p2ptrain.kernels.faults import BadScale, NonFinite

if TYPE_CHECKING:
    from typing_extensions import Buffer  # in the standard library from Python 3.12 on

Floats: TypeAlias = "NDArray[np.float32] | Buffer"
Bytes: TypeAlias = "NDArray[np.uint8] | Buffer"

BLOCK_MAX: int = _int8.BLOCK_MAX
VARIANTS: tuple[str, ...] = _int8.variants()
"""What this machine can run, best first. The first is used unless a call demands another."""

_NOT_FINITE = 1

__all__ = [
    "BLOCK_MAX",
    "VARIANTS",
    "BadScale",
    "NonFinite",
    "add_difference_requantise",
    "check",
    "dequantise",
    "encoded_bytes",
    "outer_step",
    "quantise",
    "quantise_difference",
]


def encoded_bytes(numel: int, block: int) -> int:
    """Bytes of the payload of `numel` elements: one each, and four for each block's scale."""
    if numel < 0 or not 1 <= block <= BLOCK_MAX:
        raise ValueError(f"no payload has {numel} elements in blocks of {block}")
    return numel + 4 * -(-numel // block)


def quantise(src: Floats, out: Bytes, block: int, *, variant: str = "") -> None:
    """out = q(src)."""
    _judge(_int8.quantise(src, out, block, _index(variant)))


def dequantise(payload: Bytes, out: Floats, block: int, *, variant: str = "") -> None:
    """out = deq(payload)."""
    _judge(_int8.dequantise(payload, out, block, _index(variant)))


def quantise_difference(
    theta: Floats, local: Floats, weight: float, out: Bytes, block: int, *, variant: str = ""
) -> None:
    """out = q(weight · (θ − local)): a peer's own contribution, in one pass."""
    _judge(_int8.quantise_difference(theta, local, weight, out, block, _index(variant)))


def add_difference_requantise(
    payload: Bytes,
    theta: Floats,
    local: Floats,
    weight: float,
    divisor: float,
    out: Bytes,
    block: int,
    *,
    variant: str = "",
) -> None:
    """out = q((deq(payload) + weight · (θ − local)) / divisor): one hop of the ring, in one pass.

    `out` may be `payload`. `divisor` is 1 on all hops but the last.
    """
    _judge(
        _int8.add_difference_requantise(
            payload, theta, local, weight, divisor, out, block, _index(variant)
        )
    )


def outer_step(
    theta: Floats,
    momentum: Floats,
    payload: Bytes,
    lr: float,
    mu: float,
    block: int,
    *,
    variant: str = "",
) -> None:
    """m ← μ m + Δ, θ ← θ − lr (Δ + μ m) with Δ = deq(payload): Nesterov, in place, in one pass.

    Elementwise, so threads may share the work: give each the slices of a range that starts at a
    multiple of `block`; the payload's slice starts at `encoded_bytes(start, block)`. Then `check`
    the whole payload first, so that no thread's share is applied when another's is refused.
    """
    _judge(_int8.outer_step(theta, momentum, payload, lr, mu, block, _index(variant)))


def check(payload: Bytes, numel: int, block: int) -> None:
    """Raise BadScale unless every scale is one that `quantise` could have written.

    Any code is fine: with such a scale it dequantises to a finite number.
    """
    _judge(_int8.check(payload, numel, block))


def _index(variant: str) -> int:
    """A demanded variant is a demand: another one is never used in its place."""
    if not variant:
        return 0
    if variant not in VARIANTS:
        raise MachineUnfit(
            f"this machine has no kernels named {variant!r}",
            code="KERNEL-VARIANT",
            evidence=(f"it runs {', '.join(VARIANTS)}",),
            do="demand one of these, or none",
        )
    return VARIANTS.index(variant)


def _judge(fault: tuple[int, int] | None) -> None:
    if fault is not None:
        kind, block = fault
        raise NonFinite(block) if kind == _NOT_FINITE else BadScale(block)

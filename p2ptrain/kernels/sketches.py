"""Sketches: 256 signed sums of a vector's elements, with the same bits on all peers.

`sketch_reference` defines the result, and cython/sketch_impl.c computes it. Every variant, which is
the kernel compiled for one instruction set, gives the same integers. The GIL is released.
`p2ptrain.proofs.sketches` says what sketches are for. This module does not know it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

try:
    from p2ptrain.kernels import _sketches
except ImportError as exc:
    raise ImportError("the kernels have not been compiled: run scripts/setup") from exc

WIDTH: int = _sketches.WIDTH
"""Number of sums in a sketch, and of elements in a row."""

SKETCH_VARIANTS: tuple[str, ...] = _sketches.variants()
"""The variants that this machine can run, fastest first. The first is used by default."""

Sums: TypeAlias = NDArray[np.int64]
"""A sketch: `WIDTH` sums, in units."""


def add_sketch(
    values: NDArray[np.float32],
    seed: int,
    unit_exponent: int,
    first: int,
    sums: Sums,
    *,
    variant: str = "",
) -> None:
    """Add the sketch of the elements from `first` on of a vector to `sums`. `values` is
    one-dimensional, of any length and alignment.

    Raises ValueError: a value is not finite, or has more than 2^31 units; then `sums` is undefined.
    """
    index = SKETCH_VARIANTS.index(variant) if variant else 0
    if not _sketches.add(index, values, first, seed, unit_exponent, sums):
        raise ValueError("a value is not finite or is too large for the sketch's unit")

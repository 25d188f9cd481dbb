"""Measure the error of a ring's average against the true one, on random vectors.

Only the codec's part of a reduce is simulated: contributions, hops and the division.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2ptrain.kernels import Codec

Floats = NDArray[np.float32]

PEERS = 4
ELEMENTS = 2**20


def ring_mean(
    codec: Codec, vectors: Sequence[Floats], residuals: Sequence[Floats] | None = None
) -> Floats:
    """Return the mean of `vectors` as a ring computes it: in this order, each with weight 1.

    With `residuals`, one for each vector, each peer adds its last rounding error and keeps its new
    one.
    """
    zeros, out = np.zeros_like(vectors[0]), np.empty(codec.encoded_bytes(vectors[0].size), np.uint8)
    kept: Sequence[Floats | None] = residuals or [None] * len(vectors)
    for at, (vector, residual) in enumerate(zip(vectors, kept, strict=True)):
        divisor = float(len(vectors)) if at == len(vectors) - 1 else 1.0
        if at == 0:
            codec.quantise_difference(
                vector, zeros, 1.0, out, residual=residual, residual_out=residual
            )
        else:
            codec.add_difference_requantise(
                out, vector, zeros, 1.0, divisor, out, residual=residual, residual_out=residual
            )
    mean = np.empty_like(zeros)
    codec.dequantise(out, mean)
    return mean


def relative_errors(codec: Codec, elements: int = ELEMENTS) -> dict[str, float]:
    """Return |mean − true mean| ÷ |true mean| for `PEERS` vectors of each kind of data, in
    float64."""
    rng = np.random.default_rng(0)
    gaussian = rng.standard_normal((PEERS, elements), dtype=np.float32)
    heavy = rng.standard_t(3, (PEERS, elements)).astype(np.float32)
    kinds = {"gaussian": gaussian, "student_t3": heavy}
    return {kind: _relative_error(codec, list(vectors)) for kind, vectors in kinds.items()}


def _relative_error(codec: Codec, vectors: Sequence[Floats]) -> float:
    true = np.mean(np.asarray(vectors, np.float64), axis=0)
    error = ring_mean(codec, vectors) - true
    return float(np.linalg.norm(error) / np.linalg.norm(true))

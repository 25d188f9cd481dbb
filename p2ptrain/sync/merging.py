"""Radial-directional averaging: a mean of directions, with the mean length of its inputs.

From Decoupled DiLoCo (arXiv 2604.21428). Pseudo-gradients of M peers are nearly orthogonal, so
their mean is √M times shorter than they are, and the best outer lr depends on M. For each tensor
`rda` computes

    (Σ w ‖v‖ ÷ Σ w)  ·  φ(Σ w φ(v) ÷ Σ w),     φ(v) = v ÷ ‖v‖,  φ(0) = 0

and a plain mean for the embedding. A ring can only average vectors, so the rule has three parts.
Each peer contributes `unit` of its own vector. The ring averages these. `lengthened` gives the mean
direction its length, which needs one more number for each peer and tensor. `radial` does this for
peers that must agree to the bit.

The paper's own text was not available. This is the definition on which independent open
implementations agree. (The formula as printed is said to have a vector in the place of the mean of
the norms.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Norms = NDArray[np.float64]
Spans = Sequence[tuple[int, int]]
"""[start, stop) of each tensor."""

SHORTEST = 1e-12
"""A mean of directions shorter than this has no direction: its terms have cancelled each other."""


LANES = 8192
"""Number of parallel sums of squares: enough for numpy, and few enough for the cache."""


def norm_of(vector: Floats) -> float:
    """Return the length of one vector, with the same bits on all machines.

    Every LANES-th square is added to the same sum, in order. Squares of fp32 are exact in double
    precision, and `fsum` of the sums is exact except for its last rounding. numpy's own sums, and
    BLAS's, use an order that depends on the processor.
    """
    sums = np.zeros(min(LANES, vector.size), np.float64)
    for start in range(0, vector.size, LANES):
        squares = vector[start : start + LANES].astype(np.float64)
        np.multiply(squares, squares, out=squares)
        sums[: squares.size] += squares
    return math.sqrt(math.fsum(sums))


def norms_of(vector: Floats, spans: Spans) -> Norms:
    """Return the length of each tensor."""
    return np.array([norm_of(vector[start:stop]) for start, stop in spans])


def unit(vector: Floats, spans: Spans) -> Floats:
    """Return a peer's contribution: each tensor scaled to length 1; zeros and the rest stay."""
    out = vector.copy()
    for (start, stop), norm in zip(spans, norms_of(vector, spans), strict=True):
        if norm > 0:
            out[start:stop] = vector[start:stop] / norm
    return out


def lengthened(direction: Floats, spans: Spans, norms: Norms) -> Floats:
    """Return the merged pseudo-gradient from the mean of the units and, by tensor, the mean of
    norms.

    If directions cancel each other, there is nothing to lengthen, and the result is zero.
    """
    out = direction.copy()
    for (start, stop), norm, found in zip(spans, norms, norms_of(direction, spans), strict=True):
        scale = norm / found if found > SHORTEST else 0.0
        out[start:stop] = direction[start:stop] * scale
    return out


def rda(vectors: Sequence[Floats], weights: Sequence[float], spans: Spans) -> Floats:
    """Compute the whole rule at once, without the rounding between its parts."""
    shares = np.array(weights, np.float64) / sum(weights)
    mean = np.zeros(vectors[0].size, np.float64)
    norms = np.zeros(len(spans), np.float64)
    for vector, share in zip(vectors, shares, strict=True):
        mean += share * unit(vector, spans)
        norms += share * norms_of(vector, spans)
    return lengthened(mean.astype(np.float32), spans, norms)

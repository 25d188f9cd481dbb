"""Radial-directional averaging: a mean of directions, as long as what it is made of.

Of Decoupled DiLoCo (arXiv 2604.21428). Pseudo-gradients of M peers are nearly orthogonal, so that
their mean is √M shorter than they are, and the outer lr depends on M. `rda` takes, for each tensor,

    (Σ w ‖v‖ ÷ Σ w)  ·  φ(Σ w φ(v) ÷ Σ w),     φ(v) = v ÷ ‖v‖,  φ(0) = 0

and a plain mean for the embedding. A ring averages vectors and nothing else, so it is done in three
parts: each peer contributes `unit` of its own; the ring averages these; `lengthened` gives the mean
direction its length, which needs one number more of each peer and tensor. `radial` does it for
peers who must agree to the bit.

The paper's own text was not at hand: this is the definition on which independent open
implementations agree (the formula as printed is said to have a vector where the norms' mean must
be).
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
"""A mean of directions shorter than this points nowhere: they have cancelled each other."""


LANES = 8192
"""Squares are added in so many sums beside each other: long enough for numpy, short for a cache."""


def norm_of(vector: Floats) -> float:
    """The length of one vector, to the same bit on all machines.

    Every LANES-th square goes to the same sum, the first first; squares of fp32 are exact in double
    precision, and `fsum` of the sums is exact but for its last rounding. numpy's own sums, and
    BLAS, add in whatever order suits a processor.
    """
    sums = np.zeros(min(LANES, vector.size), np.float64)
    for start in range(0, vector.size, LANES):
        squares = vector[start : start + LANES].astype(np.float64)
        np.multiply(squares, squares, out=squares)
        sums[: squares.size] += squares
    return math.sqrt(math.fsum(sums))


def norms_of(vector: Floats, spans: Spans) -> Norms:
    """The length of each tensor."""
    return np.array([norm_of(vector[start:stop]) for start, stop in spans])


def unit(vector: Floats, spans: Spans) -> Floats:
    """What a peer contributes: each tensor with length 1, or zero as it is; the rest as it is."""
    out = vector.copy()
    for (start, stop), norm in zip(spans, norms_of(vector, spans), strict=True):
        if norm > 0:
            out[start:stop] = vector[start:stop] / norm
    return out


def lengthened(direction: Floats, spans: Spans, norms: Norms) -> Floats:
    """The merged pseudo-gradient, from the mean of the units and, by tensor, the mean of norms.

    Where directions cancel each other there is nothing to lengthen, and zero is merged.
    """
    out = direction.copy()
    for (start, stop), norm, found in zip(spans, norms, norms_of(direction, spans), strict=True):
        scale = norm / found if found > SHORTEST else 0.0
        out[start:stop] = direction[start:stop] * scale
    return out


def rda(vectors: Sequence[Floats], weights: Sequence[float], spans: Spans) -> Floats:
    """All of it at once: what the three parts come to without rounding on the way."""
    shares = np.array(weights, np.float64) / sum(weights)
    mean = np.zeros(vectors[0].size, np.float64)
    norms = np.zeros(len(spans), np.float64)
    for vector, share in zip(vectors, shares, strict=True):
        mean += share * unit(vector, spans)
        norms += share * norms_of(vector, spans)
    return lengthened(mean.astype(np.float32), spans, norms)

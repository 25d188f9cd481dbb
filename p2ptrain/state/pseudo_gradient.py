"""Compare a peer's own pseudo-gradient with the mean. The numbers are only displayed.

At most `SAMPLE_MAX` elements are compared, so that it takes milliseconds for a model of any size.
They are whole codec blocks, spread evenly over the vector. Smaller models are compared completely.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from p2ptrain.kernels import Codec
from p2ptrain.kernels.formats import Bytes, Floats

SAMPLE_MAX = 2**20
PIECE = 2**14
"""Maximum number of elements per piece. A piece is so long that calling the kernels costs little,
and so short that the 64 or more pieces cover all layers of most models."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of one peer in one outer step.

    `norm` and `mean_norm` are the norms of the peer's own pseudo-gradient and of the mean, scaled
    up from the sample. `cosine` is the cosine between the two: 1 if all peers agree, about 1/√M if
    M peers have nothing in common. `quantisation_error` is the norm of the codec's rounding error
    on the peer's own pseudo-gradient, divided by `norm`.
    """

    norm: float
    mean_norm: float
    cosine: float
    quantisation_error: float


def compare(theta: Floats, local: Floats, mean: Bytes, codec: Codec) -> Comparison:
    """Compare θ − `local` with the mean in the update `mean`. The call takes a few milliseconds.

    For a vector of zeros, the cosine and the error are 0.
    """
    sums = np.zeros(4)
    sampled = 0
    for start, end in pieces(theta.size, codec.block):
        own = theta[start:end] - local[start:end]
        told, ours = np.empty_like(own), np.empty_like(own)
        codec.dequantise(mean[codec.encoded_bytes(start) : codec.encoded_bytes(end)], told)
        payload = np.empty(codec.encoded_bytes(end - start), dtype=np.uint8)
        codec.quantise(own, payload)
        codec.dequantise(payload, ours)
        exact, lost = own.astype(np.float64), np.subtract(ours, own, dtype=np.float64)
        sums += (exact @ exact, told @ told.astype(np.float64), exact @ told, lost @ lost)
        sampled += end - start
    norm, mean_norm, error = (math.sqrt(sums[index]) for index in (0, 1, 3))
    scale = math.sqrt(theta.size / max(1, sampled))
    return Comparison(
        norm * scale,
        mean_norm * scale,
        float(sums[2]) / (norm * mean_norm) if norm and mean_norm else 0.0,
        error / norm if norm else 0.0,
    )


def pieces(numel: int, block: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges to sample: the whole vector, or pieces that start at a block boundary."""
    if numel <= SAMPLE_MAX:
        yield 0, numel
        return
    length = PIECE // block * block
    count = SAMPLE_MAX // length
    for index in range(count):
        start = (numel - length) * index // (count - 1) // block * block
        yield start, start + length

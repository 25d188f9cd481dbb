"""Compare a peer's own pseudo-gradient with the mean. The numbers are for display and steer
nothing.

A sample of at most `SAMPLE_MAX` elements is taken, spread evenly in whole blocks of the codec, so
that it costs milliseconds at any size. A smaller model is taken whole.
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
"""Elements per piece.
That is long enough for the kernels, and the 64 pieces reach all layers of most models."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of one peer in one outer step.

    `norm` and `mean_norm` are the lengths of its own pseudo-gradient and of the mean, scaled up
    from the sample. `cosine` is the cosine between the two: 1 if all peers agree, about 1/√M if M
    peers have nothing in common. `quantisation_error` is what the codec loses of its own
    pseudo-gradient, as a share of its length.
    """

    norm: float
    mean_norm: float
    cosine: float
    quantisation_error: float


def compare(theta: Floats, local: Floats, mean: Bytes, codec: Codec) -> Comparison:
    """Compare θ − `local` with the mean in the update `mean`. Blocks for some milliseconds.

    A vector of length zero has no direction, so its cosine is 0, and so is its error.
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
    """Yield the sample's ranges: everything, or spread pieces that begin with a block."""
    if numel <= SAMPLE_MAX:
        yield 0, numel
        return
    length = PIECE // block * block
    count = SAMPLE_MAX // length
    for index in range(count):
        start = (numel - length) * index // (count - 1) // block * block
        yield start, start + length

"""Error feedback: over many reduces no rounding loss accumulates, since each loss is added to a
later contribution.

Whenever a peer quantises its vector or requantises a sum, it adds its residual first and keeps the
new loss as its residual. So at any time the sum of the outputs differs from the sum of the true
means only by the mean of the peers' residuals.
"""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain import kernels
from p2ptrain.bench.accuracy import ring_mean
from p2ptrain.kernels import CodecName
from tests.kernels.awkward import Array

ELEMENTS = 1000
BLOCK = 64
STEP = {"int8": 1 / 127, "int4": (1 + 2**-7) / 7}


def fresh(peers: int, seed: int) -> list[Array]:
    vectors = np.random.default_rng(seed).standard_normal((peers, ELEMENTS)).astype(np.float32)
    return list(vectors)


def drift(name: CodecName, peers: int, reduces: int, feedback: bool) -> list[float]:
    """Return, after each reduce, the largest difference between the sum of outputs and the sum of
    true means.
    """
    codec = kernels.codec(name, BLOCK)
    residuals = [np.zeros(ELEMENTS, np.float32) for _ in range(peers)] if feedback else None
    off, found = np.zeros(ELEMENTS), []
    for seed in range(reduces):
        vectors = fresh(peers, seed)
        off += ring_mean(codec, vectors, residuals) - np.mean(np.asarray(vectors, float), axis=0)
        found.append(float(np.abs(off).max()))
    return found


def bound(name: CodecName, peers: int) -> float:
    """Return an upper bound on the total error, which is the mean of the peers' residuals. A
    residual is at most half a step of the largest sum that the peer has quantised.

    In this test, the elements of a sum of N vectors and their residuals are below 6 √N, since the
    elements of the vectors are normally distributed.
    """
    sums: float = 6 * peers**0.5
    return 0.5 * STEP[name] * sums * (1 + STEP[name]) + 1e-3


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("peers", [2, 4, 7])
def test_total_error_stays_bounded_over_many_reduces(peers: int, name: CodecName) -> None:
    found = drift(name, peers, reduces=150, feedback=True)
    assert max(found) < bound(name, peers)
    assert np.mean(found[-50:]) < 1.2 * np.mean(found[10:60])


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_without_feedback_the_error_grows(name: CodecName) -> None:
    found = drift(name, peers=4, reduces=150, feedback=False)
    assert np.mean(found[-20:]) > 1.8 * np.mean(found[10:30])
    assert found[-1] > 3 * drift(name, peers=4, reduces=150, feedback=True)[-1]


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_total_error_equals_the_mean_of_the_peers_residuals(name: CodecName) -> None:
    codec = kernels.codec(name, BLOCK)
    residuals = [np.zeros(ELEMENTS, np.float32) for _ in range(3)]
    off = np.zeros(ELEMENTS)
    for seed in range(20):
        vectors = fresh(3, seed)
        off += ring_mean(codec, vectors, residuals) - np.mean(np.asarray(vectors, float), axis=0)
    kept = np.sum(np.asarray(residuals, float), axis=0)
    np.testing.assert_allclose(-3 * off, kept, atol=1e-4)

"""The figures that compare a peer's pseudo-gradient with the mean."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain import kernels
from p2ptrain.state.pseudo_gradient import SAMPLE_MAX, Comparison, compare, pieces

INT8 = kernels.codec("int8", 256)
FP32 = kernels.codec("fp32", 256)


def encoded(values: np.ndarray, codec: kernels.Codec) -> np.ndarray:
    payload = np.empty(codec.encoded_bytes(values.size), dtype=np.uint8)
    codec.quantise(values, payload)
    return payload


@pytest.fixture
def vectors() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    theta, local = random.standard_normal((2, 100_003), dtype=np.float32)
    return theta, local


def test_small_model_is_compared_completely(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    theta, local = vectors
    own = (theta - local).astype(np.float64)
    mean = np.random.default_rng(1).standard_normal(own.size, dtype=np.float32)
    told = compare(theta, local, encoded(mean, FP32), FP32)
    length, mean_length = np.linalg.norm(own), np.linalg.norm(mean.astype(np.float64))
    assert told.norm == pytest.approx(length)
    assert told.mean_norm == pytest.approx(mean_length)
    assert told.cosine == pytest.approx(own @ mean / length / mean_length, rel=1e-5)
    assert told.quantisation_error == 0.0


def test_int8_quantisation_error_of_a_gaussian_vector_is_about_one_percent(
    vectors: tuple[np.ndarray, np.ndarray],
) -> None:
    theta, local = vectors
    told = compare(theta, local, encoded(theta - local, INT8), INT8)
    assert 0.003 < told.quantisation_error < 0.02
    assert told.cosine == pytest.approx(1.0, abs=1e-3)


def test_comparison_of_a_zero_vector_is_all_zeros() -> None:
    theta = np.ones(1000, dtype=np.float32)
    nothing = compare(theta, theta.copy(), encoded(np.zeros_like(theta), INT8), INT8)
    assert nothing == Comparison(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("numel", [SAMPLE_MAX + 1, 5_000_011, 10**10])
@pytest.mark.parametrize("block", [32, 60, 256, 4096])
def test_sample_consists_of_whole_blocks_and_is_bounded(numel: int, block: int) -> None:
    taken = list(pieces(numel, block))
    assert taken[0][0] == 0
    assert numel - taken[-1][1] < block + 1
    assert all(start % block == 0 == (end - start) % block for start, end in taken)
    assert sum(end - start for start, end in taken) <= SAMPLE_MAX


def test_norm_of_a_sample_is_scaled_up_to_the_whole_vector() -> None:
    theta = np.full(3 * SAMPLE_MAX, 2.0, dtype=np.float32)
    told = compare(theta, np.zeros_like(theta), encoded(theta, INT8), INT8)
    assert told.norm == pytest.approx(2.0 * theta.size**0.5)

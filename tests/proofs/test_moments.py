"""Moments keep their meaning in 2 bytes, and are the same bytes on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.proofs.moments import MomentsFormat, mean_of_donors, moments_digest

FORMAT = MomentsFormat(ratio_max=1.165, root_max=1.0)
KNOWN = [[240, 109], [240, 201], [240, 0], [168, 112], [221, 127], [0, 0], [0, 0]]


def moments(count: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    root = 2.0 ** draws.uniform(-30, -1, count)
    return (
        (root * draws.uniform(-1.16, 1.16, count)).astype(np.float32),
        (root * root).astype(np.float32),
    )


def test_decoded_moments_are_near_the_originals() -> None:
    mean, square = moments()
    kept_mean, kept_square = FORMAT.decode(FORMAT.encode(mean, square))
    root, kept_root = np.sqrt(square), np.sqrt(kept_square)
    assert np.abs(kept_root / root - 1).max() <= 1 / 16 + 1e-6
    assert np.abs(mean / kept_root - kept_mean / kept_root).max() <= 1.165 / 254 + 0.08


def test_decoded_moments_are_encoded_as_the_same_bytes() -> None:
    codes = FORMAT.encode(*moments())
    assert np.array_equal(FORMAT.encode(*FORMAT.decode(codes)), codes)


def test_every_code_is_a_finite_number_and_survives() -> None:
    both = np.stack(np.meshgrid(np.arange(1, 256), np.arange(-127, 128)), axis=-1).reshape(-1, 2)
    codes = both.astype(np.int16).astype(np.uint8)
    mean, square = FORMAT.decode(codes)
    assert np.isfinite(mean).all()
    assert np.isfinite(square).all()
    assert np.array_equal(FORMAT.encode(mean, square), codes)


def test_moments_have_known_bytes() -> None:
    mean = np.array([0.5, -0.25, 0.0, 1e-3, 9.0, 1.0, 1.0], np.float32)
    square = np.array([0.25, 0.25, 0.25, 1e-6, 0.01, 1e-30, 0.0], np.float32)
    assert FORMAT.encode(mean, square).tolist() == KNOWN


def test_parts_are_encoded_as_in_the_whole() -> None:
    mean, square = moments()
    parts = [FORMAT.encode(mean[a:b], square[a:b]) for a, b in ((0, 17), (17, 1024), (1024, 3000))]
    assert np.array_equal(np.concatenate(parts), FORMAT.encode(mean, square))


def test_momentum_of_muon_is_bf16() -> None:
    mean, square = moments()
    with_muon = MomentsFormat(1.165, 1.0, (slice(100, 200),))
    codes = with_muon.encode(mean, square)
    kept_mean, kept_square = with_muon.decode(codes)
    assert np.abs(kept_mean[100:200] / mean[100:200] - 1).max() <= 2.0**-8
    assert not kept_square[100:200].any()
    assert np.array_equal(codes[:100], FORMAT.encode(mean, square)[:100])
    assert np.array_equal(with_muon.encode(kept_mean, kept_square), codes)


def test_values_beyond_the_bounds_are_encoded_as_the_bounds() -> None:
    codes = FORMAT.encode(np.array([np.inf, -9, 0], np.float32), np.array([1, 1, 1e9], np.float32))
    mean, square = FORMAT.decode(codes)
    assert np.abs(mean).max() <= 1.17 * 1.0
    assert square.max() < 4


@pytest.mark.parametrize("bound", [0.0, float("nan"), float("inf"), -1.0])
def test_format_needs_bounds(bound: float) -> None:
    with pytest.raises(ValueError):
        MomentsFormat(1.165, bound)


def test_digest_covers_codes_and_count() -> None:
    codes = FORMAT.encode(*moments())
    other = codes.copy()
    other[5, 1] ^= 1
    digests = {moments_digest(codes, 7), moments_digest(codes, 8), moments_digest(other, 7)}
    assert len(digests) == 3


def test_bytes_of_a_wrong_length_are_refused() -> None:
    codes = FORMAT.encode(*moments(50))
    assert np.array_equal(FORMAT.read(codes.tobytes(), 50), codes)
    with pytest.raises(RemoteProtocolError, match="98 bytes instead of 100"):
        FORMAT.read(codes.tobytes()[:98], 50)


def test_momentum_that_is_not_finite_is_refused() -> None:
    with_muon = MomentsFormat(1.165, 1.0, (slice(10, 20),))
    codes = FORMAT.encode(*moments(50))
    codes[12] = (0x80, 0x7F)  # infinity in bf16
    with pytest.raises(RemoteProtocolError, match="not finite"):
        with_muon.read(codes.tobytes(), 50)
    assert FORMAT.read(codes.tobytes(), 50).shape == (50, 2)


def test_mean_of_donors_can_be_recomputed() -> None:
    donors = [FORMAT.encode(*moments(seed=seed)) for seed in (1, 2, 3)]
    made = mean_of_donors(FORMAT, donors)
    assert np.array_equal(made, mean_of_donors(FORMAT, [each.copy() for each in donors]))
    means = [FORMAT.decode(each)[0] for each in donors]
    kept = np.sqrt(FORMAT.decode(made)[1])
    large = kept > 1e-6
    assert (
        np.abs((FORMAT.decode(made)[0] - np.mean(means, axis=0))[large] / kept[large]).max() < 0.1
    )


def test_one_donor_is_copied() -> None:
    codes = FORMAT.encode(*moments())
    assert np.array_equal(mean_of_donors(FORMAT, [codes]), codes)

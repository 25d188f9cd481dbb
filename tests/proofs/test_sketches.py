"""A sketch is a fixed function of the vector and the seed, linear to the last bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from p2ptrain.ids import Digest
from p2ptrain.kernels import WIDTH
from p2ptrain.proofs.sketches import UNIT_BITS, cosine, length, seed_of, sketch, unit_exponent_of

CONTRIBUTIONS = [Digest("01" * 32), Digest("02" * 32)]
SEED = seed_of(Digest("ab" * 32), CONTRIBUTIONS)
EXPONENT = unit_exponent_of(7.0)
MASK = 2**64 - 1
KNOWN = ([2311585792, 25332023296, 25451036672], 211892961280)


def values(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-4, 4, count).astype(np.float32)


def splitmix(seed: int, number: int) -> int:
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def plain_sketch(vector: np.ndarray, seed: int, unit_exponent: int, first: int) -> list[int]:
    """The definition in the module's docstring, one element at a time, with Python's integers."""
    sums = [0] * WIDTH
    for place, value in enumerate(vector.tolist(), first):
        row, column = divmod(place, WIDTH)
        units = round(value * 2.0**-unit_exponent)  # Python rounds ties to even, too
        negative = splitmix(seed, 5 * row + column // 64) >> column % 64 & 1
        rotation = splitmix(seed, 5 * row + 4) >> 56
        sums[(column + rotation) % WIDTH] += -units if negative else units
    return sums


@pytest.mark.parametrize("count", [0, 1, 7, 255, 256, 257, 4095, 4096])
@pytest.mark.parametrize("first", [0, 255, 1000])
def test_sketch_equals_the_plain_definition(count: int, first: int) -> None:
    vector = values(count, seed=count)
    assert sketch(vector, SEED, EXPONENT, first).tolist() == plain_sketch(
        vector, SEED, EXPONENT, first
    )


def test_sketch_of_a_long_vector_is_known() -> None:
    """This value must never change: peers with different versions would accuse each other."""
    vector = (np.arange(600_000) % 8191 - 4095).astype(np.float32) / np.float32(1024)
    found = sketch(vector, 12345, EXPONENT)
    assert (found[:3].tolist(), int(found.sum())) == KNOWN


def test_sketches_of_parts_add_up_exactly() -> None:
    vector = values(1_300_000)
    cuts = [0, 1, 1000, 4096, 524_288, 777_777, vector.size]
    parts = [sketch(vector[a:b], SEED, EXPONENT, a) for a, b in pairwise(cuts)]
    assert np.array_equal(np.sum(parts, axis=0), sketch(vector, SEED, EXPONENT))


def test_sketch_of_a_sum_is_the_sum_of_sketches() -> None:
    """Whole units are added without rounding, so equality is exact."""
    unit = np.float32(2.0 ** (EXPONENT + 12))
    one, other = (
        np.asarray(np.rint(values(5000, seed=each) / unit) * unit, np.float32) for each in (1, 2)
    )
    both = sketch(one, SEED, EXPONENT) + sketch(other, SEED, EXPONENT)
    assert np.array_equal(both, sketch(np.asarray(one + other, np.float32), SEED, EXPONENT))


def test_lengths_and_cosines_have_the_stated_errors() -> None:
    draws = np.random.default_rng(3)
    ratios, cosines = [], []
    for seed in range(120):
        one, noise = (draws.standard_normal(20_000, np.float32) for _ in range(2))
        other = np.float32(0.6) * one + np.float32(0.8) * noise
        first, second = (sketch(each, seed, EXPONENT) for each in (one, other))
        ratios.append(length(first) * 2.0**EXPONENT / float(np.linalg.norm(one)))
        cosines.append(
            cosine(first, second)
            - float(one @ other) / float(np.linalg.norm(one) * np.linalg.norm(other))
        )
    assert abs(np.mean(ratios) - 1) < 0.01
    assert np.std(ratios) < 0.055
    assert np.std(cosines) < 0.05


def test_energy_in_few_places_is_measured_as_well() -> None:
    """A contribution that is concentrated in one row, or in one column of all rows."""
    for step, count in ((1, 256), (256, 400)):
        vector = np.zeros(256 * 400, np.float32)
        vector[: step * count : step] = 1
        lengths = [length(sketch(vector, seed, EXPONENT)) for seed in range(30)]
        ratios = np.array(lengths) * 2.0**EXPONENT / np.sqrt(count)
        assert 0.8 < ratios.min() <= ratios.max() < 1.2


def test_seed_depends_on_the_roster_and_on_the_contributions_in_its_order() -> None:
    roster = Digest("ab" * 32)
    assert seed_of(roster, CONTRIBUTIONS) == SEED
    assert seed_of(Digest("ab" * 31 + "aa"), CONTRIBUTIONS) != SEED
    assert seed_of(roster, CONTRIBUTIONS[::-1]) != SEED
    assert seed_of(roster, CONTRIBUTIONS[:1]) != SEED
    assert not np.array_equal(
        sketch(values(5000), SEED, EXPONENT), sketch(values(5000), SEED + 1, EXPONENT)
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 16.1, -17.0])
def test_values_beyond_the_unit_are_refused(bad: float) -> None:
    vector = values(1000)
    vector[777] = bad
    with pytest.raises(ValueError, match="not finite or is too large"):
        sketch(vector, SEED, EXPONENT)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_unit_needs_a_positive_bound(bad: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        unit_exponent_of(bad)


def test_unit_fits_the_bound() -> None:
    assert unit_exponent_of(1.0) == 1 - UNIT_BITS
    assert unit_exponent_of(0.3) == -1 - UNIT_BITS
    assert cosine(np.zeros(WIDTH, np.int64), sketch(values(9), SEED, EXPONENT)) == 0

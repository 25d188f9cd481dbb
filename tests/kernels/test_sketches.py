"""Every variant of the sketch's kernel returns the same integers as the numpy reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2ptrain.kernels import CODECS, SKETCH_VARIANTS, VARIANTS, WIDTH, add_sketch, codec
from p2ptrain.kernels.sketch_reference import sketch as reference
from tests.kernels.awkward import SIZES, Array, mixed, unaligned

SEED, UNIT = 0xFEDCBA9876543210, -28
variants = pytest.mark.parametrize("variant", SKETCH_VARIANTS)


def native(variant: str, values: Array, first: int = 0, unit: int = UNIT) -> Array:
    sums = np.zeros(WIDTH, np.int64)
    add_sketch(values, SEED, unit, first, sums, variant=variant)
    return sums


def small(numel: int, seed: int = 1) -> Array:
    """Return awkward values of at most 2^31 units."""
    return np.asarray(np.clip(mixed(numel, seed), -8, 8), np.float32)


def test_sketches_have_the_variants_of_the_codecs() -> None:
    assert SKETCH_VARIANTS == VARIANTS


@variants
@pytest.mark.parametrize("first", [0, 1, 63, 64, 255, 256, 1000, (1 << 40) + 77])
@pytest.mark.parametrize("numel", SIZES)
def test_kernel_matches_the_reference_for_any_size(numel: int, first: int, variant: str) -> None:
    values = small(numel, seed=numel)
    expected = reference(values, SEED, UNIT, first)
    assert native(variant, values, first).tolist() == expected.tolist()


@variants
@pytest.mark.parametrize("numel", [7, 256, 4095])
def test_kernel_reads_unaligned_elements(numel: int, variant: str) -> None:
    values = small(numel)
    assert np.array_equal(native(variant, unaligned(values)), native(variant, values))


@variants
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("block", [1, 7, 64, 256])
def test_kernel_matches_the_reference_for_the_values_of_any_codec(
    block: int, name: str, variant: str
) -> None:
    made, values = codec(name, block), small(4095)  # type: ignore[arg-type]
    values *= np.float32(0.5)  # Codecs may round magnitudes up.
    payload = np.empty(made.encoded_bytes(values.size), np.uint8)
    made.quantise(values, payload)
    made.dequantise(payload, values)
    assert native(variant, values).tolist() == reference(values, SEED, UNIT).tolist()


@variants
@settings(max_examples=60, deadline=None)
@given(data=st.data(), unit=st.sampled_from([-149, -60, -28, -3, 0, 40]))
def test_kernel_matches_the_reference_for_any_bits(
    data: st.DataObject, unit: int, variant: str
) -> None:
    """Values that the reference refuses are refused: NaN, infinities, and more than 2^31 units."""
    bits = data.draw(hnp.arrays(np.uint32, st.integers(0, 300)))
    values, first = bits.view(np.float32), data.draw(st.integers(0, 600))
    try:
        expected = reference(values, SEED, unit, first).tolist()
    except ValueError:
        with pytest.raises(ValueError, match="too large"):
            native(variant, values, first, unit)
    else:
        assert native(variant, values, first, unit).tolist() == expected


@variants
@pytest.mark.parametrize("sign", [1, -1])
def test_largest_allowed_element_is_2_to_31_units(sign: int, variant: str) -> None:
    values = np.zeros(300, np.float32)
    values[290] = sign * 8.0
    assert np.abs(native(variant, values)).sum() == 2**31
    values[290] = np.nextafter(np.float32(sign * 8.0), np.float32(sign * 9.0))
    with pytest.raises(ValueError, match="too large"):
        native(variant, values)


@variants
def test_halves_of_a_unit_are_rounded_to_even(variant: str) -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    assert sorted(np.abs(native(variant, values, unit=0)).tolist())[-6:] == [0, 0, 2, 2, 2, 2]


@variants
def test_sums_are_exact_however_many_rows_there_are(variant: str) -> None:
    """All elements of the same column and sign: the buckets hold the largest possible sums."""
    rows = 40_000
    values = np.full(rows * WIDTH, 8.0, np.float32)
    assert native(variant, values).tolist() == reference(values, SEED, UNIT).tolist()


@variants
def test_sums_are_added_to_those_that_are_given(variant: str) -> None:
    values, sums = small(5000), np.zeros(WIDTH, np.int64)
    for low in range(0, 5000, 700):
        add_sketch(values[low : low + 700], SEED, UNIT, low, sums, variant=variant)
    assert sums.tolist() == reference(values, SEED, UNIT).tolist()


@pytest.mark.parametrize(
    ("values", "first", "sums", "error"),
    [
        (np.zeros(3, np.float64), 0, np.zeros(WIDTH, np.int64), TypeError),
        (np.zeros(3, np.float32), 0, np.zeros(WIDTH, np.float64), TypeError),
        (np.zeros(3, np.float32), 0, np.zeros(WIDTH - 1, np.int64), ValueError),
        (np.zeros(3, np.float32), -1, np.zeros(WIDTH, np.int64), ValueError),
        (np.zeros(6, np.float32)[::2], 0, np.zeros(WIDTH, np.int64), (BufferError, ValueError)),
    ],
)
def test_unsuitable_buffers_are_refused(
    values: Array, first: int, sums: Array, error: type[Exception]
) -> None:
    with pytest.raises(error):
        add_sketch(values, SEED, UNIT, first, sums)

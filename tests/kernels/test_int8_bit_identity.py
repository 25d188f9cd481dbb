"""Every native variant gives the bits of the numpy reference, on awkward sizes and values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2ptrain import kernels
from p2ptrain.kernels import reference

SIZES = (0, 1, 7, 31, 32, 33, 255, 256, 257, 4095)
BLOCKS = (1, 7, 32, 256, 4096)
FLOAT_MAX = np.finfo(np.float32).max

Floats = np.ndarray
variants = pytest.mark.parametrize("variant", kernels.VARIANTS)


def mixed_magnitudes(numel: int, seed: int) -> Floats:
    """Blocks of very different size: the usual, denormals, zeros of both signs, huge, ties."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(numel).astype(np.float32)
    kind = np.arange(numel) // 37 % 6
    values[kind == 1] *= np.float32(1e-42)
    values[kind == 2] = np.where(values[kind == 2] > 0, 0.0, -0.0)
    values[kind == 3] *= np.float32(2.0**90)
    values[kind == 4] = np.round(values[kind == 4] * 8) / 2
    values[kind == 5] *= np.float32(2.0**-100)
    return values


def payload_of(values: Floats, block: int) -> Floats:
    out = np.empty(kernels.encoded_bytes(values.size, block), np.uint8)
    reference.quantise(values, out, block)
    return out


def unaligned(values: Floats) -> Floats:
    raw = np.empty(values.nbytes + 1, np.uint8)[1:]
    raw[:] = values.view(np.uint8)
    return raw.view(values.dtype)


def both(
    native: Callable[[Floats], None], expected: Callable[[Floats], None], like: Floats
) -> None:
    """Run both into outputs that start different, and demand the same bits."""
    got, want = np.full_like(like, 1), np.full_like(like, 2)
    native(got)
    expected(want)
    assert got.tobytes() == want.tobytes()


@variants
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("numel", SIZES)
def test_quantise_and_dequantise(numel: int, block: int, variant: str) -> None:
    values = mixed_magnitudes(numel, seed=numel)
    payload = payload_of(values, block)
    both(
        lambda out: kernels.quantise(values, out, block, variant=variant),
        lambda out: reference.quantise(values, out, block),
        payload,
    )
    both(
        lambda out: kernels.dequantise(payload, out, block, variant=variant),
        lambda out: reference.dequantise(payload, out, block),
        values,
    )


@variants
@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("weight", [0.0, 1.0, 8191.0, 3e9])
def test_quantise_difference(numel: int, weight: float, variant: str) -> None:
    theta, local = mixed_magnitudes(numel, 1) / 1e10, mixed_magnitudes(numel, 2) / 1e10
    both(
        lambda out: kernels.quantise_difference(theta, local, weight, out, 32, variant=variant),
        lambda out: reference.quantise_difference(theta, local, weight, out, 32),
        payload_of(theta, 32),
    )


@variants
@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("block", [32, 256])
@pytest.mark.parametrize("divisor", [1.0, 3.0, 40961.0])
def test_add_difference_requantise(numel: int, block: int, divisor: float, variant: str) -> None:
    theta, local = mixed_magnitudes(numel, 1) / 1e10, mixed_magnitudes(numel, 2) / 1e10
    incoming = payload_of(mixed_magnitudes(numel, 3), block)
    both(
        lambda out: kernels.add_difference_requantise(
            incoming, theta, local, 17.0, divisor, out, block, variant=variant
        ),
        lambda out: reference.add_difference_requantise(
            incoming, theta, local, 17.0, divisor, out, block
        ),
        incoming,
    )


@variants
@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("block", [32, 256])
def test_outer_step(numel: int, block: int, variant: str) -> None:
    payload = payload_of(mixed_magnitudes(numel, 3), block)
    theta, momentum = mixed_magnitudes(numel, 4), mixed_magnitudes(numel, 5)
    expected_theta, expected_momentum = theta.copy(), momentum.copy()
    kernels.outer_step(theta, momentum, payload, 0.7, 0.9, block, variant=variant)
    reference.outer_step(expected_theta, expected_momentum, payload, 0.7, 0.9, block)
    assert theta.tobytes() == expected_theta.tobytes()
    assert momentum.tobytes() == expected_momentum.tobytes()


@variants
def test_alignment_does_not_matter(variant: str) -> None:
    theta, local = mixed_magnitudes(777, 1) / 1e10, mixed_magnitudes(777, 2) / 1e10
    aligned, shifted = payload_of(theta, 256), unaligned(payload_of(theta, 256))
    incoming = payload_of(local, 256)
    kernels.add_difference_requantise(incoming, theta, local, 3.0, 7.0, aligned, 256)
    kernels.add_difference_requantise(
        unaligned(incoming), unaligned(theta), unaligned(local), 3.0, 7.0, shifted, 256,
        variant=variant,
    )  # fmt: skip
    assert shifted.tobytes() == aligned.tobytes()


@variants
def test_a_hop_may_write_over_what_it_reads(variant: str) -> None:
    theta, local = mixed_magnitudes(999, 1) / 1e10, mixed_magnitudes(999, 2) / 1e10
    incoming = payload_of(local, 256)
    apart = np.empty_like(incoming)
    kernels.add_difference_requantise(incoming, theta, local, 3.0, 7.0, apart, 256)
    kernels.add_difference_requantise(
        incoming, theta, local, 3.0, 7.0, incoming, 256, variant=variant
    )
    assert incoming.tobytes() == apart.tobytes()


@variants
@settings(max_examples=60, deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        st.integers(0, 600),
        elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=True),
    ),
    block=st.sampled_from([1, 3, 64, 256]),
)
def test_any_finite_vector(values: Floats, block: int, variant: str) -> None:
    both(
        lambda out: kernels.quantise(values, out, block, variant=variant),
        lambda out: reference.quantise(values, out, block),
        np.empty(kernels.encoded_bytes(values.size, block), np.uint8),
    )


@variants
@settings(max_examples=60, deadline=None)
@given(codes=st.binary(min_size=0, max_size=600), scale=st.floats(2.0**-107, 2.0**94, width=32))
def test_any_codes_from_a_peer(codes: bytes, scale: float, variant: str) -> None:
    """Also code -128, which no quantise writes, and codes beside a scale of zero."""
    numel, block = len(codes), 64
    payload = np.zeros(kernels.encoded_bytes(numel, block), np.uint8)
    for at in range(0, numel, block):
        run = codes[at : at + block]
        start = at + 4 * (at // block)
        payload[start : start + 4] = np.float32(scale if at else 0.0).reshape(1).view(np.uint8)
        payload[start + 4 : start + 4 + len(run)] = np.frombuffer(run, np.uint8)
    both(
        lambda out: kernels.dequantise(payload, out, block, variant=variant),
        lambda out: reference.dequantise(payload, out, block),
        np.empty(numel, np.float32),
    )


@variants
@pytest.mark.parametrize("poison", [np.nan, -np.nan, np.inf, -np.inf, FLOAT_MAX, -FLOAT_MAX])
@pytest.mark.parametrize("at", [0, 31, 255, 256, 511, 512, 599])
def test_what_is_not_finite_is_named_by_its_first_block(
    poison: float, at: int, variant: str
) -> None:
    values = mixed_magnitudes(600, 1)
    values[at] = poison
    values[599] = np.nan
    out = np.empty(kernels.encoded_bytes(600, 256), np.uint8)
    with pytest.raises(kernels.NonFinite) as native:
        kernels.quantise(values, out, 256, variant=variant)
    with pytest.raises(kernels.NonFinite) as expected:
        reference.quantise(values, out, 256)
    assert native.value.block == expected.value.block == at // 256


@variants
@pytest.mark.parametrize(
    "scale", [np.nan, np.inf, -np.inf, -1.0, -0.0, 1e-42, 2.0**-108, 2.0**95], ids=str
)
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_scale_that_nobody_writes_is_refused_before_anything_changes(
    scale: float, bad: int, variant: str
) -> None:
    theta, momentum = mixed_magnitudes(600, 1), mixed_magnitudes(600, 2)
    payload = payload_of(theta, 256)
    payload[bad * 260 : bad * 260 + 4] = np.float32(scale).reshape(1).view(np.uint8)
    before = theta.tobytes(), momentum.tobytes()
    calls: list[Callable[[], None]] = [
        lambda: kernels.outer_step(theta, momentum, payload, 0.7, 0.9, 256, variant=variant),
        lambda: kernels.check(payload, 600, 256),
        lambda: kernels.dequantise(payload, theta.copy(), 256, variant=variant),
        lambda: kernels.add_difference_requantise(
            payload, theta, theta, 1.0, 1.0, payload.copy(), 256, variant=variant
        ),
        lambda: reference.dequantise(payload, theta.copy(), 256),
    ]
    for call in calls:
        with pytest.raises(kernels.BadScale) as fault:
            call()
        assert fault.value.block == bad
    assert (theta.tobytes(), momentum.tobytes()) == before

"""Every native variant returns the same bits as the numpy reference, for awkward sizes and
values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2ptrain.kernels import BadScale, CodecName, NonFinite
from tests.kernels.awkward import (
    BLOCKS,
    RANGE,
    SIZES,
    Array,
    codecs,
    encoded,
    implementation,
    mixed,
    tame,
    unaligned,
    variants,
)

Place = Callable[[Array], Array]
GARBAGE = 7


def told(call: Callable[..., object], *arguments: Any, **options: Any) -> object:
    """Return the result of a call. If the call finds a fault, return a text with the fault and its
    block.
    """
    try:
        return call(*arguments, **options)
    except (BadScale, NonFinite) as fault:
        return f"{type(fault).__name__} {fault.block}"


def sums(codec: Any, given: list[Array], weight: float, divisor: float) -> dict[str, object]:
    """Return the faults, results and outputs of the functions that add vectors, with and without
    residuals.
    """
    payload, theta, local, residual = given
    found: dict[str, object] = {}
    for name, old, keeps in [
        ("plain", None, False),
        ("feedback", residual, True),
        ("first", None, True),
        ("last", residual, False),
    ]:
        kept = np.full_like(theta, GARBAGE)
        options = {"residual": old, "residual_out": kept if keeps else None}
        out = np.full_like(payload, GARBAGE)
        fault = told(codec.quantise_difference, theta, local, weight, out, **options)
        found[f"difference, {name}"] = fault, *outcome(fault, out, kept)
        for own, subtracted in [("hop", local), ("hop of one vector", None)]:
            fault = told(
                codec.add_difference_requantise,
                *(payload, theta, subtracted, weight, divisor, out),
                **options,
            )
            found[f"{own}, {name}"] = fault, *outcome(fault, out, kept)
    for own, subtracted in [("difference", local), ("vector", None)]:
        for name, old in [("plain", None), ("feedback", residual)]:
            total = theta.copy()
            fault = told(
                codec.add_difference,
                *(payload, total, subtracted, weight, total),
                residual=old,
            )
            found[f"sum of a {own}, {name}"] = fault, *outcome(fault, total)
    return found


def alone(codec: Any, given: list[Array]) -> dict[str, object]:
    """Return the results and outputs of the other functions, which do not add vectors."""
    payload, theta, momentum, _ = given
    out, values = np.full_like(payload, GARBAGE), np.full_like(theta, GARBAGE)
    moved, theta_moved = momentum.copy(), theta.copy()
    return {
        "check": told(codec.check, payload, theta.size),
        "peak": told(codec.peak, payload, theta.size),
        "quantise": ((fault := told(codec.quantise, theta, out)), *outcome(fault, out)),
        "dequantise": ((fault := told(codec.dequantise, payload, values)), *outcome(fault, values)),
        "outer step": (
            told(codec.outer_step, theta_moved, moved, payload, 0.7, 0.9),
            *outcome(None, theta_moved, moved),
        ),
    }


def outcome(returned: object, *outputs: Array) -> list[bytes]:
    """Return the bytes to compare. Outputs are undefined after a fault, and NaNs can have any
    bits.
    """
    if isinstance(returned, str):
        return []
    return [np.where(np.isnan(each), GARBAGE, each).tobytes() for each in outputs]


def agree(
    variant: str,
    name: CodecName,
    block: int,
    given: list[Array],
    weight: float = 17.0,
    divisor: float = 3.0,
    place: Place = lambda array: array,
) -> None:
    native, reference = (implementation(kind, name, block) for kind in (variant, "reference"))
    placed = [place(each) for each in given]
    assert alone(native, placed) == alone(reference, given)
    got, expected = sums(native, placed, weight, divisor), sums(reference, given, weight, divisor)
    assert got == expected


def vectors(name: CodecName, block: int, numel: int) -> list[Array]:
    """Return a payload, two vectors and a residual."""
    payload = encoded(name, block, mixed(numel, 1, name))
    return [payload, *(tame(numel, seed, name) for seed in (2, 3, 4))]


@variants
@codecs
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("numel", SIZES)
def test_variants_match_the_reference_for_any_size(
    numel: int, block: int, name: CodecName, variant: str
) -> None:
    agree(variant, name, block, vectors(name, block, numel))


@variants
@codecs
@pytest.mark.parametrize("weight", [0.0, 1.0, 8191.0, 3e9, 3e38])
@pytest.mark.parametrize("divisor", [1.0, 3.0, 40961.0, 3e38])
def test_variants_match_the_reference_for_any_weight_and_divisor(
    divisor: float, weight: float, name: CodecName, variant: str
) -> None:
    agree(variant, name, 64, vectors(name, 64, 700), weight, divisor)


@variants
@codecs
def test_variants_match_the_reference_for_any_alignment(name: CodecName, variant: str) -> None:
    agree(variant, name, 256, vectors(name, 256, 777), place=unaligned)


@variants
@codecs
@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    block=st.sampled_from([1, 3, 64, 256]),
)
def test_variants_match_the_reference_for_any_finite_vector(
    data: st.DataObject, block: int, name: CodecName, variant: str
) -> None:
    top = float(np.float32(RANGE[name]))
    elements = st.floats(-top, top, width=32, allow_subnormal=True)
    numel = data.draw(st.integers(0, 300))
    three = [data.draw(hnp.arrays(np.float32, numel, elements=elements)) for _ in range(3)]
    agree(variant, name, block, [encoded(name, block, three[0]), *three])


@variants
@codecs
@settings(max_examples=60, deadline=None)
@given(data=st.data(), numel=st.integers(0, 300), block=st.sampled_from([1, 3, 64]))
def test_variants_match_the_reference_for_any_bytes_from_a_peer(
    data: st.DataObject, numel: int, block: int, name: CodecName, variant: str
) -> None:
    """The bytes can hold codes that `quantise` never writes, nonzero codes with a scale of zero,
    and any bad scale.
    """
    size = implementation("reference", name, block).encoded_bytes(numel)
    payload = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    zeros = np.zeros(numel, np.float32)
    native, reference = (implementation(kind, name, block) for kind in (variant, "reference"))
    given: list[Array] = [payload.copy(), zeros, zeros, zeros]
    assert alone(native, given) == alone(reference, given)


@variants
@codecs
@pytest.mark.parametrize("poison", [np.nan, -np.nan, np.inf, -np.inf, 2.0**101, -(2.0**127)])
@pytest.mark.parametrize("at", [0, 31, 255, 256, 511, 512, 599])
@pytest.mark.parametrize("where", [1, 2, 3], ids=["theta", "local", "residual"])
def test_variants_match_the_reference_for_nan_and_infinity(
    where: int, poison: float, at: int, name: CodecName, variant: str
) -> None:
    given = vectors(name, 256, 600)
    given[where][at] = poison
    given[where][599] = np.nan
    agree(variant, name, 256, given)
    found = sums(implementation(variant, name, 256), given, 17.0, 3.0)
    assert found["difference, feedback"] == (f"NonFinite {at // 256}",)

"""Properties of every codec in every implementation."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from p2ptrain import kernels
from p2ptrain.errors import MachineUnfit
from p2ptrain.kernels import CodecName
from tests.kernels.awkward import Array, codecs, encoded, implementation, implementations, tame

STEP = {"fp32": 0.0, "fp16": 2.0**-10, "int8": 1 / 127, "int4": (1 + 2**-7) / 7}
"""The distance between neighbouring values near the largest value of a block, divided by that
value.
"""


def random(numel: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


@implementations
@codecs
@pytest.mark.parametrize("amax", [2.0**-98, 1e-20, 1.0, 3.4e10, 2.0**100])
def test_quantisation_error_is_at_most_half_a_step_of_the_block(
    amax: float, name: CodecName, kind: str
) -> None:
    if name == "fp16":
        amax = min(max(amax, 2.0**-10), 65504)
    codec = implementation(kind, name, 250)
    values = np.linspace(-amax, amax, 1000, dtype=np.float32)
    payload, back = np.empty(codec.encoded_bytes(1000), np.uint8), np.empty_like(values)
    codec.quantise(values, payload)
    codec.dequantise(payload, back)
    largest = np.abs(values.reshape(4, 250)).max(axis=1, keepdims=True).astype(np.float64)
    error = np.abs(values.astype(np.float64) - back).reshape(4, 250)
    assert (error <= largest * STEP[name] * (0.5 + 1e-4)).all()


@implementations
@codecs
@pytest.mark.parametrize("amax", [2.0**-25 * 1.01, 1e-3, 1.0, 60_000.0])
def test_peak_is_a_tight_upper_bound_on_the_vectors_values(
    amax: float, name: CodecName, kind: str
) -> None:
    codec = implementation(kind, name, 64)
    values = random(1000, 3)
    values *= np.float32(amax) / np.abs(values).max()
    payload, back = np.empty(codec.encoded_bytes(1000), np.uint8), np.empty_like(values)
    codec.quantise(values, payload)
    codec.dequantise(payload, back)
    peak = codec.peak(payload, 1000)
    assert np.abs(back).max() <= peak
    assert peak <= np.abs(values).max() * kernels.codec(name, 64).growth + 2.0**-25
    assert codec.peak(payload[:0], 0) == 0.0


@codecs
def test_decoded_values_are_at_most_the_peak_times_the_codecs_reach(
    name: CodecName,
) -> None:
    codec, back = kernels.codec(name, 64), np.empty(640, np.float32)
    payload = encoded(name, 64, random(640, 3))
    if name in ("int8", "int4"):
        rows = payload.reshape(10, -1)
        rows[:, -32:] = 0x80 if name == "int8" else 0x88  # all codes are -128, or -8
    codec.dequantise(payload, back)
    reached = np.abs(back).max() / codec.peak(payload, 640)
    assert reached == pytest.approx(codec.reach, rel=1e-6)


@implementations
@codecs
def test_quantising_a_quantised_vector_hardly_changes_it(name: CodecName, kind: str) -> None:
    codec = implementation(kind, name, 64)
    payload = encoded(name, 64, random(1000, 0))
    back, again, back_again = np.empty(1000, np.float32), np.empty_like(payload), random(1000, 1)
    codec.dequantise(payload, back)
    codec.quantise(back, again)
    codec.dequantise(again, back_again)
    np.testing.assert_allclose(back_again, back, rtol=2**-7 if name == "int4" else 1e-6)


@implementations
@codecs
def test_processing_whole_blocks_separately_gives_the_same_bytes(
    name: CodecName, kind: str
) -> None:
    """A hop in three calls gives the same bytes as a hop in a single call."""
    codec = implementation(kind, name, 64)
    theta, local, residual = (tame(1000, seed, name) for seed in (1, 2, 3))
    payload = encoded(name, 64, random(1000, 0))
    whole, cut = payload.copy(), payload.copy()
    kept, kept_cut = residual.copy(), residual.copy()
    codec.add_difference_requantise(
        whole, theta, local, 2.0, 3.0, whole, residual=kept, residual_out=kept
    )
    for start, stop in ((0, 64), (64, 640), (640, 1000)):
        here = slice(start, stop)
        part = cut[codec.encoded_bytes(start) : codec.encoded_bytes(stop)]
        old = kept_cut[here]
        codec.add_difference_requantise(
            part, theta[here], local[here], 2.0, 3.0, part, residual=old, residual_out=old
        )
    assert cut.tobytes() == whole.tobytes()
    assert kept_cut.tobytes() == kept.tobytes()


@implementations
@codecs
def test_hop_can_overwrite_its_input(name: CodecName, kind: str) -> None:
    theta, local, residual = (tame(999, seed, name) for seed in (1, 2, 3))
    codec = implementation(kind, name, 64)
    payload = encoded(name, 64, random(999, 0))
    apart, kept = np.empty_like(payload), np.empty_like(residual)
    codec.add_difference_requantise(
        payload, theta, local, 3.0, 7.0, apart, residual=residual, residual_out=kept
    )
    codec.add_difference_requantise(
        payload, theta, local, 3.0, 7.0, payload, residual=residual, residual_out=residual
    )
    assert payload.tobytes() == apart.tobytes()
    assert residual.tobytes() == kept.tobytes()


@implementations
@codecs
def test_residual_is_the_difference_between_true_sum_and_output(name: CodecName, kind: str) -> None:
    codec = implementation(kind, name, 64)
    theta, local, residual = random(500, 1), random(500, 2), random(500, 3) / 10
    out = np.empty(codec.encoded_bytes(500), np.uint8)
    kept, sent = np.empty_like(theta), np.empty_like(theta)
    codec.quantise_difference(theta, local, 2.0, out, residual=residual, residual_out=kept)
    codec.dequantise(out, sent)
    np.testing.assert_allclose(sent + kept, 2 * (theta - local) + residual, atol=1e-5)
    arrived = sent.copy()
    codec.add_difference_requantise(
        out, theta, local, 3.0, 5.0, out, residual=kept, residual_out=residual
    )
    codec.dequantise(out, sent)
    total = arrived + 3 * (theta - local) + kept
    np.testing.assert_allclose(5 * sent + residual, total, atol=1e-4)


@implementations
@codecs
def test_residual_of_zeros_changes_nothing(name: CodecName, kind: str) -> None:
    codec = implementation(kind, name, 64)
    theta, local, zeros = random(500, 1), random(500, 2), np.zeros(500, np.float32)
    with_zeros, without = (np.empty(codec.encoded_bytes(500), np.uint8) for _ in range(2))
    codec.quantise_difference(theta, local, 2.0, with_zeros, residual=zeros)
    codec.quantise_difference(theta, local, 2.0, without)
    assert with_zeros.tobytes() == without.tobytes()


@implementations
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_residual_that_is_out_of_range_is_an_error(name: CodecName, kind: str) -> None:
    """The sums are in range only after the division. Their rounding losses, which are not divided,
    are out of range.
    """
    codec = implementation(kind, name, 4)
    theta, local = np.array([2.0**126, 2.0**125], np.float32), np.zeros(2, np.float32)
    nothing, out = (np.zeros(codec.encoded_bytes(2), np.uint8) for _ in range(2))
    codec.add_difference_requantise(nothing, theta, local, 1.0, 2.0**27, out)
    with pytest.raises(kernels.NonFinite):
        codec.add_difference_requantise(
            nothing, theta, local, 1.0, 2.0**27, out, residual_out=local
        )


@implementations
@codecs
def test_malformed_payload_does_not_change_the_weights(name: CodecName, kind: str) -> None:
    codec = implementation(kind, name, 256)
    theta, momentum = random(600, 1), random(600, 2)
    payload = encoded(name, 256, theta)
    payload[codec.encoded_bytes(512) :] = 0xFF
    before = theta.tobytes(), momentum.tobytes()
    with pytest.raises(kernels.BadScale) as fault:
        codec.outer_step(theta, momentum, payload, 0.7, 0.9)
    assert fault.value.block == 2
    assert (theta.tobytes(), momentum.tobytes()) == before


@codecs
def test_outer_step_gives_the_same_bits_in_one_or_several_threads(name: CodecName) -> None:
    codec = kernels.codec(name, 256)
    payload = encoded(name, 256, random(100_000, 0))
    theta, momentum = random(100_000, 1), random(100_000, 2)
    theta_alone, momentum_alone = theta.copy(), momentum.copy()
    codec.outer_step(theta_alone, momentum_alone, payload, 0.7, 0.9)

    def share(start: int, stop: int) -> None:
        part = payload[codec.encoded_bytes(start) : codec.encoded_bytes(stop)]
        codec.outer_step(theta[start:stop], momentum[start:stop], part, 0.7, 0.9)

    cuts = [0, 25_600, 51_200, 76_800, 100_000]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(share, cuts[:-1], cuts[1:]))
    assert theta.tobytes() == theta_alone.tobytes()
    assert momentum.tobytes() == momentum_alone.tobytes()


@codecs
def test_plain_bytes_and_memoryviews_are_accepted(name: CodecName) -> None:
    codec = kernels.codec(name, 4)
    values = np.arange(5, dtype=np.float32)
    out = bytearray(codec.encoded_bytes(5))
    codec.quantise(values, out)
    back = np.empty_like(values)
    codec.dequantise(bytes(out), back)
    codec.dequantise(memoryview(out), back)
    codec.check(bytes(out), 5)


def test_buffers_of_a_wrong_size_or_type_raise_an_error() -> None:
    codec, floats, payload = kernels.codec("int8", 8), np.zeros(8, np.float32), bytearray(12)
    with pytest.raises(ValueError):
        codec.quantise(floats[:7], payload)
    with pytest.raises(ValueError):
        codec.quantise_difference(floats, floats[:4], 1.0, payload)
    with pytest.raises(ValueError):
        codec.quantise_difference(floats, floats, 1.0, payload, residual=floats[:4])
    with pytest.raises(ValueError):
        codec.check(payload, -1)
    with pytest.raises(TypeError):
        codec.quantise(floats.astype(np.float64), payload)
    with pytest.raises(TypeError):
        codec.quantise(floats.view(np.int32), payload)
    with pytest.raises(BufferError):
        codec.quantise(floats, bytes(12))
    with pytest.raises((BufferError, ValueError)):
        codec.quantise(np.zeros(16, np.float32)[::2], payload)


@pytest.mark.parametrize(
    ("name", "block"), [("zip", 256), ("int8", 0), ("int4", -1), ("fp16", kernels.BLOCK_MAX + 1)]
)
def test_codec_with_an_invalid_name_or_block_is_refused(name: CodecName, block: int) -> None:
    with pytest.raises(ValueError):
        kernels.codec(name, block)


def test_encoded_size_of_a_negative_number_of_elements_is_an_error() -> None:
    with pytest.raises(ValueError):
        kernels.codec("int8", 256).encoded_bytes(-1)


def test_missing_compiled_kernels_are_reported() -> None:
    hide = "import sys; sys.modules['p2ptrain.kernels._codecs'] = None; import p2ptrain.kernels"
    found = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.endswith("run scripts/setup\n")


def test_missing_variant_is_an_error() -> None:
    floats, payload = np.zeros(8, np.float32), np.zeros(12, np.uint8)
    with pytest.raises(MachineUnfit) as fault:
        kernels.codec("int8", 8).quantise(floats, payload, variant="avx1024")
    assert fault.value.code == "KERNEL-VARIANT"
    assert kernels.VARIANTS[-1] in ("baseline", "neon")

"""What the codec promises whoever uses it, whichever variant runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from p2ptrain import kernels
from p2ptrain.errors import MachineUnfit


def round_trip(values: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    payload = np.empty(kernels.encoded_bytes(values.size, block), np.uint8)
    back = np.empty_like(values)
    kernels.quantise(values, payload, block)
    kernels.dequantise(payload, back, block)
    return payload, back


@pytest.mark.parametrize(
    ("numel", "block", "expected"),
    [(0, 256, 0), (1, 256, 5), (256, 256, 260), (257, 256, 265), (10, 1, 50)],
)
def test_a_payload_has_a_byte_for_each_element_and_a_scale_for_each_block(
    numel: int, block: int, expected: int
) -> None:
    assert kernels.encoded_bytes(numel, block) == expected


@pytest.mark.parametrize(("numel", "block"), [(-1, 256), (1, 0), (1, -1), (1, 4097)])
def test_a_size_that_cannot_be_is_refused(numel: int, block: int) -> None:
    with pytest.raises(ValueError):
        kernels.encoded_bytes(numel, block)


def test_the_scale_stands_before_the_codes_of_its_block() -> None:
    values = np.array([1.0, -127.0, 63.5, 0.0, 2.0], np.float32)
    payload, back = round_trip(values, 4)
    assert payload[:4].view(np.float32).tolist() == [1.0]
    assert payload[4:8].view(np.int8).tolist() == [1, -127, 64, 0]
    assert payload[8:12].view(np.float32).tolist() == [np.float32(2.0) / np.float32(127)]
    assert payload[12:].view(np.int8).tolist() == [127]
    assert back.tolist() == [1.0, -127.0, 64.0, 0.0, 2.0]


def test_halves_round_to_even() -> None:
    values = np.array([0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 126.5, 127.0], np.float32)
    payload, _ = round_trip(values, 16)
    assert payload[4:].view(np.int8).tolist() == [0, 2, 2, 4, 0, -2, -2, 126, 127]


@pytest.mark.parametrize("amax", [0.0, -0.0, 1e-45, 1e-38, 2.0**-101])
def test_a_block_too_small_to_scale_becomes_plain_zeros(amax: float) -> None:
    payload, back = round_trip(np.full(40, amax, np.float32), 16)
    assert payload.tobytes() == bytes(payload.size)
    assert back.tobytes() == bytes(back.nbytes)


@pytest.mark.parametrize("amax", [2.0**-98, 1e-20, 1.0, 3.4e10, 2.0**100])
def test_the_error_is_at_most_half_a_step_of_its_block(amax: float) -> None:
    values = np.linspace(-amax, amax, 1000, dtype=np.float32)
    _, back = round_trip(values, 250)
    step = np.abs(values.reshape(4, 250)).max(axis=1, keepdims=True).astype(np.float64) / 127
    error = np.abs(values.astype(np.float64) - back).reshape(4, 250)
    assert (error <= step * (0.5 + 1e-4)).all()


def test_what_was_quantised_once_quantises_to_itself() -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    payload, back = round_trip(values, 256)
    again, back_again = round_trip(back, 256)
    assert np.array_equal(payload[4:260], again[4:260])
    np.testing.assert_allclose(back_again, back, rtol=1e-6)


def test_threads_that_share_an_outer_step_give_the_same_bits_as_one() -> None:
    rng = np.random.default_rng(1)
    numel, block = 100_000, 256
    payload = np.empty(kernels.encoded_bytes(numel, block), np.uint8)
    kernels.quantise(rng.standard_normal(numel).astype(np.float32), payload, block)
    theta = rng.standard_normal(numel).astype(np.float32)
    momentum = rng.standard_normal(numel).astype(np.float32)
    theta_alone, momentum_alone = theta.copy(), momentum.copy()
    kernels.outer_step(theta_alone, momentum_alone, payload, 0.7, 0.9, block)

    def share(start: int, stop: int) -> None:
        part = payload[kernels.encoded_bytes(start, block) : kernels.encoded_bytes(stop, block)]
        kernels.outer_step(theta[start:stop], momentum[start:stop], part, 0.7, 0.9, block)

    cuts = [0, 25_600, 51_200, 76_800, numel]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(share, cuts[:-1], cuts[1:]))
    assert theta.tobytes() == theta_alone.tobytes()
    assert momentum.tobytes() == momentum_alone.tobytes()


def test_plain_bytes_and_memoryviews_will_do() -> None:
    values = np.arange(5, dtype=np.float32)
    out = bytearray(kernels.encoded_bytes(5, 4))
    kernels.quantise(values, out, 4)
    back = np.empty_like(values)
    kernels.dequantise(bytes(out), back, 4)
    kernels.dequantise(memoryview(out), back, 4)
    kernels.check(bytes(out), 5, 4)


def test_buffers_that_do_not_fit_are_our_own_bug() -> None:
    floats, payload = np.zeros(8, np.float32), np.zeros(12, np.uint8)
    read_only = bytes(12)
    with pytest.raises(ValueError):
        kernels.quantise(floats[:7], payload, 8)
    with pytest.raises(ValueError):
        kernels.quantise(floats, payload, 0)
    with pytest.raises(ValueError):
        kernels.quantise_difference(floats, floats[:4], 1.0, payload, 8)
    with pytest.raises(TypeError):
        kernels.quantise(floats.astype(np.float64), payload, 8)
    with pytest.raises(TypeError):
        kernels.quantise(floats.view(np.int32), payload, 8)
    with pytest.raises(BufferError):
        kernels.quantise(floats, read_only, 8)
    with pytest.raises((BufferError, ValueError)):
        kernels.quantise(np.zeros(16, np.float32)[::2], payload, 8)


def test_a_variant_that_the_machine_lacks_is_an_error_and_never_replaced() -> None:
    floats, payload = np.zeros(8, np.float32), np.zeros(12, np.uint8)
    with pytest.raises(MachineUnfit) as fault:
        kernels.quantise(floats, payload, 8, variant="avx1024")
    assert fault.value.code == "KERNEL-VARIANT"
    assert kernels.VARIANTS[-1] == "baseline"

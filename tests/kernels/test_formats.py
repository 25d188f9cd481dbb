"""The byte format of each codec."""

from __future__ import annotations

import numpy as np
import pytest

from p2ptrain import kernels
from p2ptrain.kernels import CodecName
from tests.kernels.awkward import implementation, implementations


def trip(kind: str, name: CodecName, block: int, values: list[float]) -> tuple[bytes, list[float]]:
    codec = implementation(kind, name, block)
    given = np.array(values, np.float32)
    payload, back = np.empty(codec.encoded_bytes(given.size), np.uint8), np.empty_like(given)
    codec.quantise(given, payload)
    codec.dequantise(payload, back)
    return payload.tobytes(), back.tolist()


@pytest.mark.parametrize(
    ("name", "numel", "block", "expected"),
    [
        ("fp32", 257, 256, 1028),
        ("fp16", 257, 256, 514),
        ("int8", 0, 256, 0),
        ("int8", 1, 256, 5),
        ("int8", 256, 256, 260),
        ("int8", 257, 256, 265),
        ("int8", 10, 1, 50),
        ("int4", 64, 64, 34),
        ("int4", 65, 64, 37),
        ("int4", 15, 5, 15),
    ],
)
def test_payload_has_the_documented_size(
    name: CodecName, numel: int, block: int, expected: int
) -> None:
    for kind in (*kernels.VARIANTS, "reference"):
        assert implementation(kind, name, block).encoded_bytes(numel) == expected


@implementations
def test_int8_block_is_an_fp32_scale_followed_by_codes(kind: str) -> None:
    payload, back = trip(kind, "int8", 4, [1.0, -127.0, 63.5, 0.0, 2.0])
    second = np.float32(2) / np.float32(127)
    assert payload == b"".join(
        [np.float32(1).tobytes(), bytes([1, 256 - 127, 64, 0]), second.tobytes(), bytes([127])]
    )
    assert back == [1.0, -127.0, 64.0, 0.0, 2.0]


@implementations
def test_int4_block_is_a_bf16_scale_followed_by_two_codes_per_byte(kind: str) -> None:
    payload, back = trip(kind, "int4", 5, [7.0, -7.0, 1.0, 2.0, -1.0, 14.0])
    assert payload.hex(" ") == " ".join(
        [
            "80 3f",  # 1.0
            "27 f9 01",  # codes in pairs: 2 and 7, −1 and −7, padding and 1
            "00 40",  # 2.0
            "07",
        ]
    )
    assert back == [7.0, -7.0, 1.0, 2.0, -1.0, 14.0]


@implementations
def test_int4_scale_is_rounded_up_so_that_all_codes_fit(kind: str) -> None:
    for amax in np.random.default_rng(0).uniform(1, 4, 300).astype(np.float32):
        payload, (back,) = trip(kind, "int4", 8, [amax])
        scale = (np.uint32(int.from_bytes(payload[:2], "little")) << 16).view(np.float32)
        assert payload[2] == 7
        assert amax / 7 <= np.nextafter(scale, np.float32(9)) <= amax / 7 * (1 + 2**-7)
        assert back == 7 * scale


@implementations
def test_values_halfway_between_codes_round_to_even(kind: str) -> None:
    eighths, _ = trip(kind, "int8", 16, [0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 126.5, 127.0])
    assert np.frombuffer(eighths[4:], np.int8).tolist() == [0, 2, 2, 4, 0, -2, -2, 126, 127]
    _, fourths = trip(kind, "int4", 16, [0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 6.5, 7.0])
    assert fourths == [0.0, 2.0, 2.0, 4.0, 0.0, -2.0, -2.0, 6.0, 7.0]


@implementations
def test_fp16_rounds_to_nearest_even_and_keeps_denormals(kind: str) -> None:
    least = 2.0**-24
    given = [
        1 + 2**-11,
        1 + 3 * 2**-11,
        -65519.0,
        least,
        1.5 * least,
        least / 2,
        -(2.0**-14),
        1e-30,
    ]
    _, back = trip(kind, "fp16", 8, given)
    assert back == [1.0, 1 + 2**-9, -65504.0, least, 2 * least, 0.0, -(2.0**-14), 0.0]


@implementations
def test_every_finite_fp16_value_is_kept_exactly(kind: str) -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    halves = halves[np.isfinite(halves.view(np.float16))]
    codec = implementation(kind, "fp16", 256)
    values, again = np.empty(halves.size, np.float32), np.empty_like(halves)
    codec.dequantise(halves.view(np.uint8), values)
    codec.quantise(values, again.view(np.uint8))
    assert values.tobytes() == halves.view(np.float16).astype(np.float32).tobytes()
    assert again.tobytes() == halves.tobytes()


@implementations
def test_fp32_is_sent_unchanged(kind: str) -> None:
    given = [1.0, -0.0, 1e-45, 2.0**100, -3.25]
    payload, back = trip(kind, "fp32", 2, given)
    assert payload == np.array(given, np.float32).tobytes()
    assert np.array(back, np.float32).tobytes() == payload


@implementations
@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("amax", [0.0, -0.0, 1e-45, 1e-38, 2.0**-101])
def test_block_of_tiny_values_is_encoded_as_zero_bytes(
    amax: float, name: CodecName, kind: str
) -> None:
    payload, back = trip(kind, name, 16, [amax] * 40)
    assert payload == bytes(len(payload))
    assert np.array(back, np.float32).tobytes() == bytes(160)


@implementations
@pytest.mark.parametrize(
    "bad", [np.nan, np.inf, -np.inf, -1.0, -0.0, 1e-42, 2.0**-108, 2.0**99], ids=str
)
@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_scale_that_the_codec_never_writes_is_refused(
    name: CodecName, block: int, bad: float, kind: str
) -> None:
    codec = implementation(kind, name, 256)
    payload = np.zeros(codec.encoded_bytes(600), np.uint8)
    start, whole = codec.encoded_bytes(256 * block), np.float32(bad).tobytes()
    scale = whole if name == "int8" else whole[2:]
    payload[start : start + len(scale)] = np.frombuffer(scale, np.uint8)
    if name == "int4" and bad == 1e-42:
        codec.check(payload, 600)  # The upper half of 1e-42 is 0, so the bf16 scale is zero.
        return
    with pytest.raises(kernels.BadScale) as fault:
        codec.check(payload, 600)
    assert fault.value.block == block


@implementations
@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("fp32", np.float32(np.nan)),
        ("fp32", np.float32(-np.inf)),
        ("fp32", np.float32(2.0**101)),
        ("fp16", np.float16(np.nan)),
        ("fp16", np.float16(np.inf)),
        ("fp16", np.float16(-np.inf)),
    ],
)
@pytest.mark.parametrize("at", [0, 255, 256, 599])
def test_value_that_the_codec_never_writes_is_refused(
    at: int, name: CodecName, bad: np.floating, kind: str
) -> None:
    codec = implementation(kind, name, 256)
    values = np.zeros(600, bad.dtype)
    values[at] = bad
    with pytest.raises(kernels.BadScale) as fault:
        codec.check(values.view(np.uint8), 600)
    assert fault.value.block == at // 256


@implementations
def test_fp16_refuses_values_that_would_become_infinite(kind: str) -> None:
    codec = implementation(kind, "fp16", 4)
    with pytest.raises(kernels.NonFinite) as fault:
        codec.quantise(np.array([0, 0, 0, 0, 65520], np.float32), np.empty(10, np.uint8))
    assert fault.value.block == 1

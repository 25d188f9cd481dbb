"""Proofs of hidden states: the published bytes, a second implementation, and refusals."""

from __future__ import annotations

import base64
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.proofs.hidden_states import (
    PRIME,
    PROOF_BYTES,
    TOKENS,
    Bits,
    Match,
    chunk_starts,
    chunks_of,
    compare,
    encode,
)

SMALL = 6
"""Values in a proof of the second implementation, which takes cubic time in pure Python."""

PUBLISHED = {
    "/9kbQitnukt1bQ==": (80, {35: 2.890625, 63: 2.390625, 70: -2.171875, 79: -2.671875}),
    "/9nLuJrxhiVUoA==": (48, {2: -2.375, 6: -1.78125, 35: -2.546875, 44: 2.53125}),
    "/9m0aNrm5KtBtg==": (48, {3: 2.203125, 8: 2.8125, 19: 2.03125, 47: -2.234375}),
    "/9mAZNZYMOKvcw==": (48, {3: 2.0, 33: 2.015625, 43: 2.109375, 44: -2.21875}),
    "/9nSBGTqkZH21w==": (16, {1: -1.28125, 4: 1.2109375, 13: -2.453125, 14: 1.1796875}),
}
"""The proofs in the README of the package `toploc`: the size of a chunk, and its four largest
values by their places. The proofs do not contain the other values, which were smaller."""


def bf16(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Bits:
    """Return the bits of the bf16 numbers below `values`, in magnitude."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def normal_chunk(seed: int, values: int = TOKENS * 24) -> Bits:
    return bf16(np.random.default_rng(seed).standard_normal((1, values)))


@pytest.mark.parametrize("published", PUBLISHED)
def test_proofs_are_those_of_the_published_package(published: str) -> None:
    size, largest = PUBLISHED[published]
    values = np.full((1, size), 0.5)
    for place, value in largest.items():
        values[0, place] = value
    assert encode(bf16(values), top=4) == [base64.b64decode(published)]


def slow_proof(chunk: list[int], top: int) -> bytes:
    """Prove a chunk by the definition, with Lagrange's formula and Python's integers."""
    largest = sorted(range(len(chunk)), key=lambda place: (-(chunk[place] & 0x7FFF), place))[:top]
    modulus = PRIME
    while len({place % modulus for place in largest}) < top:
        modulus -= 1
    points = {place % modulus: chunk[place] for place in largest}
    total = [0] * top
    for x, y in points.items():
        basis, below = [1], 1
        for other in points.keys() - {x}:
            shifted, scaled = [0, *basis], [*(-other * each for each in basis), 0]
            basis = [(a + b) % PRIME for a, b in zip(shifted, scaled, strict=True)]
            below = below * (x - other) % PRIME
        factor = y * pow(below, -1, PRIME)
        total = [(a + factor * b) % PRIME for a, b in zip(total, basis, strict=True)]
    return b"".join(each.to_bytes(2, "big") for each in [modulus, *total])


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([SMALL, 7, 100, 2 * PRIME + 5]), st.booleans())
def test_proofs_equal_those_of_a_slow_implementation(seed: int, size: int, coarse: bool) -> None:
    """Coarse values contain many ties, and long chunks need a smaller modulus now and then."""
    random = np.random.default_rng(seed)
    chunk = bf16(random.standard_normal((1, size)) + 0.01)
    if size > PRIME:
        chunk[:] = 0x3000
        chunk[0, random.integers(0, size, SMALL - 3)] = 0x4010
        chunk[0, [9, 9 + PRIME, 8 + PRIME]] = 0x4020
    elif coarse:
        chunk &= 0xFF80
    assert encode(chunk, SMALL) == [slow_proof([int(each) for each in chunk[0]], SMALL)]


def test_chunks_are_proved_together_as_one_by_one() -> None:
    chunks = np.concatenate([normal_chunk(seed) for seed in range(5)])
    together = encode(chunks)
    assert together == [encode(each[None])[0] for each in chunks]
    assert {len(each) for each in together} == {PROOF_BYTES}
    assert compare(chunks, together) == [Match(0, 0.0)] * 5


def test_close_states_fit_and_other_states_do_not() -> None:
    values = np.random.default_rng(1).standard_normal((1, TOKENS * 24))
    proof = encode(bf16(values))
    rounded, coarse, negated, other = (
        compare(bf16(each), proof)[0]
        for each in (values * 1.002, values * 1.04, -values, values[:, ::-1])
    )
    assert rounded.fits
    assert not coarse.fits
    assert negated == Match(128, 128.0)
    assert not other.fits
    assert other.mismatches > 100


def test_place_of_a_tie_does_not_depend_on_the_other_values() -> None:
    """Equal values at the lowest places are proved, so a tie never makes honest proofs differ."""
    chunk = np.full((1, 200), 0x4000, np.uint16)
    chunk[0, 150:] = 0xC000
    assert encode(chunk) == encode(np.where(np.arange(200) < 128, chunk, 0x3F00).astype(np.uint16))


@pytest.mark.parametrize(
    ("chunk", "said"),
    [
        (np.zeros((1, 640), np.uint16), "not zero"),
        (np.pad(normal_chunk(0, 127), ((0, 0), (0, 500))), "not zero"),
        (np.full((1, 640), 0x7F80, np.uint16), "not finite"),
        (np.full((1, 640), 0xFFC0, np.uint16), "not finite"),
        (normal_chunk(0, 127), "127 values"),
    ],
)
def test_states_without_a_proof_are_an_error(chunk: Bits, said: str) -> None:
    """The published package returns a proof of zeros instead."""
    with pytest.raises(ValueError, match=said):
        encode(chunk)


HOSTILE = {
    "nothing": b"",
    "only zeros": bytes(PROOF_BYTES),
    "modulus 0": bytes(2) + b"\x01" * 256,
    "a small modulus": (127).to_bytes(2, "big") + b"\x01" * 256,
    "modulus above the prime": (PRIME + 1).to_bytes(2, "big") + b"\x01" * 256,
    "zero coefficients": PRIME.to_bytes(2, "big") + bytes(256),
    "a coefficient outside the field": PRIME.to_bytes(2, "big") + b"\xff" * 256,
    "a byte too few": encode(normal_chunk(3))[0][:-1],
    "a byte too many": encode(normal_chunk(3))[0] + b"\0",
}


@pytest.mark.parametrize("bad", HOSTILE.values(), ids=HOSTILE)
def test_invalid_proof_is_refused(bad: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        compare(normal_chunk(3), [bad])


def test_number_of_proofs_must_be_the_number_of_chunks() -> None:
    chunk = normal_chunk(3)
    for proofs in ([], 2 * encode(chunk)):
        with pytest.raises(RemoteProtocolError):
            compare(chunk, proofs)


@settings(max_examples=40)
@given(st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES))
def test_arbitrary_bytes_never_fit(data: bytes) -> None:
    try:
        (match,) = compare(normal_chunk(4), [data])
    except RemoteProtocolError:
        return
    assert not match.fits


def test_each_token_is_in_a_chunk_of_32_tokens() -> None:
    for tokens, starts in ((32, [0]), (33, [0, 1]), (64, [0, 32]), (70, [0, 32, 38])):
        assert chunk_starts(tokens) == starts
    states = np.arange(70 * 3, dtype=np.uint16).reshape(70, 3)
    chunks = chunks_of(states).reshape(3, TOKENS, 3)
    for chunk, start in zip(chunks, (0, 32, 38), strict=True):
        assert np.array_equal(chunk, states[start : start + TOKENS])
    with pytest.raises(ValueError, match="31"):
        chunks_of(states[:31])


def test_constant_guess_does_not_fit() -> None:
    """A polynomial of degree 0 answers the same everywhere, whatever the places are."""
    chunk = np.full((1, 640), 0x4000, np.uint16)
    chunk[0, ::2] |= 0x8000
    chunk += np.random.default_rng(5).integers(0, 128, chunk.shape, np.uint16)
    for sign, mantissa in product((0x4000, 0xC000), (0, 64, 127)):
        guess = [PRIME, sign | mantissa, *[0] * 127]
        proof = b"".join(each.to_bytes(2, "big") for each in guess)
        assert not compare(chunk, [proof])[0].fits

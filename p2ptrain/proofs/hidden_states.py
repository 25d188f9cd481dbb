"""Proofs of hidden states (TOPLOC, arXiv 2501.16007): 258 bytes for 32 tokens.

Somebody who ran a model over a text can prove it to anybody who has the same weights and the text.
The prover takes the last hidden states of 32 tokens, as bf16 numbers, and finds the 128 values of
the largest magnitude. A value is a point: its place among the 32 · width values, and its 16 bits.
One polynomial over a finite field goes through all 128 points, and its coefficients are the proof.
The checker computes the hidden states again, finds *its own* 128 largest values, and evaluates the
polynomial there. If both computed the same up to rounding, the signs and exponents agree, and the
mantissas are close. Elsewhere, and for other hidden states, the polynomial's values are noise.

The bytes are those of the published package, except where it has faults. The package returns a
proof of zeros if it cannot make one, and a checker then divides by zero. Here such states are an
error, and such a proof is refused. The package ignores signs; here a different sign is a mismatch.
The package leaves open which of several equal values belong to the 128; here the first ones do.

This module does not know what computed the hidden states. `p2ptrain chat --prove` and
`p2ptrain proof check` use it, through `trainer/tools/proving`. No node uses it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from p2ptrain.errors import RemoteProtocolError

TOKENS = 32
"""Tokens of a chunk, for which there is one proof."""

TOP = 128
"""Values of a chunk that its proof contains."""

PRIME = 65_497
"""Size of the field. All finite bf16 numbers have bits below 0xff80 = 65,408, so they are elements
of the field. Products of two elements are below 2³²."""

PROOF_BYTES = 2 + 2 * TOP

MISMATCHES_MAX = 12
MANTISSA_ERROR_MAX = 2.0
"""The limits within which two computations of a chunk count as equal.

The paper's limits, 38 mismatches and a mean error of 10, accepted 23 % of the chunks that were
computed with the weights of one outer step before. These limits rejected all of them: the closest
had 28 mismatches and an error of 9.2. The worst of 6,400 honest chunks had 5 mismatches and an
error of 0.90, over fp32, bf16 and autocast, one and two threads, batches of 1, 3 and 8, and three
attention kernels. Weights in int8 pass. docs/results/trust.md has our measurements."""

_MAGNITUDE = 0x7FFF
_INFINITE = 0x7F80
_MANTISSA_BITS = 7
_MANTISSA = 0x7F

_GROUPS_PER_VALUE = 8
"""Groups of values for each of the largest values that are wanted."""

Bits = NDArray[np.uint16]
Places = NDArray[np.int64]
Elements = NDArray[np.uint32]
"""Elements of the field. Arrays have the shape [points, chunks], so that all chunks are computed
together and each operation reads memory in order."""


@dataclass(frozen=True, slots=True)
class Match:
    """How close a chunk is to the chunk of a proof. `mismatches` counts the values, of `TOP`, whose
    signs or exponents differ. `mantissa_error` is the mean difference of the 7-bit mantissas of the
    other values: 0 to 127, or 128 if all values are mismatches."""

    mismatches: int
    mantissa_error: float

    @property
    def fits(self) -> bool:
        return self.mismatches <= MISMATCHES_MAX and self.mantissa_error <= MANTISSA_ERROR_MAX


def chunks_of(states: Bits) -> Bits:
    """Split the hidden states [tokens, width] of one text into chunks [chunks, TOKENS · width].

    The last chunk consists of the last `TOKENS` tokens, so it may overlap the chunk before it. All
    chunks then have the same size, for which the limits were measured.

    Raises ValueError: there are fewer than `TOKENS` tokens.
    """
    tokens, width = states.shape
    starts = chunk_starts(tokens)
    chunks = [states[start : start + TOKENS].reshape(-1) for start in starts]
    return np.stack(chunks) if chunks else np.empty((0, TOKENS * width), np.uint16)


def chunk_starts(tokens: int) -> list[int]:
    """Return the first token of each chunk. Raises ValueError: the text is too short."""
    if tokens < TOKENS:
        raise ValueError(f"a proof needs {TOKENS} tokens, and this text has {tokens}")
    starts = list(range(0, tokens - TOKENS + 1, TOKENS))
    return starts if tokens % TOKENS == 0 else [*starts, tokens - TOKENS]


def encode(chunks: Bits, top: int = TOP) -> list[bytes]:
    """Return the proof of each of the `chunks` [chunks, values], which are bits of bf16 numbers.

    Raises ValueError: a chunk has fewer than `top` values that are not zero, or a value that is not
    finite; or no modulus keeps its places apart.
    """
    places = _largest(chunks, top)
    moduli = np.array([_modulus(each) for each in places], np.int64)
    x = (places % moduli[:, None]).T.astype(np.uint32)
    y = np.take_along_axis(chunks, places, 1).T.astype(np.uint32)
    words = np.vstack([moduli[None].astype(np.uint32), _interpolated(x, y)])
    return [column.astype(">u2").tobytes() for column in words.T]


def compare(chunks: Bits, proofs: Sequence[bytes], top: int = TOP) -> list[Match]:
    """Compare each of the `chunks` [chunks, values] with its proof, which may come from anybody.

    Raises:
        ValueError: as for `encode`.
        RemoteProtocolError: the number of proofs is wrong, or one of them is not a proof.
    """
    if len(proofs) != len(chunks):
        raise RemoteProtocolError(f"there are {len(proofs)} proofs for {len(chunks)} chunks")
    words = np.array([_words(proof, top) for proof in proofs], np.uint32).reshape(-1, top + 1)
    places = _largest(chunks, top)
    ours = np.take_along_axis(chunks, places, 1).astype(np.int64)
    x = (places % words[:, :1]).T.astype(np.uint32)
    theirs = _evaluated(words[:, 1:].T, x).T.astype(np.int64)
    like = ours >> _MANTISSA_BITS == theirs >> _MANTISSA_BITS
    errors = np.abs((ours & _MANTISSA) - (theirs & _MANTISSA))
    return [_match(*each) for each in zip(like, errors, strict=True)]


def _match(like: NDArray[np.bool_], errors: Places) -> Match:
    error = float(errors[like].mean()) if like.any() else float(_MANTISSA + 1)
    return Match(int((~like).sum()), error)


def _words(proof: bytes, top: int) -> NDArray[np.uint16]:
    """Return the modulus and the coefficients in `proof`. Raises RemoteProtocolError."""
    if len(proof) != 2 + 2 * top:
        raise RemoteProtocolError(f"a proof has {2 + 2 * top} bytes, not {len(proof)}")
    words = np.frombuffer(proof, ">u2").astype(np.uint16)
    if not top <= words[0] <= PRIME:
        raise RemoteProtocolError(f"{words[0]} is not a valid modulus of a proof")
    if (words[1:] >= PRIME).any() or not words[1:].any():
        raise RemoteProtocolError("the coefficients of a proof are not valid")
    return words


def _largest(chunks: Bits, top: int) -> Places:
    """Return the places [chunks, top] of the largest magnitudes, in ascending order. Of equal
    magnitudes, those at the lowest places are taken."""
    count, size = chunks.shape
    magnitudes = chunks & np.uint16(_MAGNITUDE)
    if size < top:
        raise ValueError(f"a chunk has {size} values; a proof needs {top}")
    if (magnitudes >= _INFINITE).any():
        raise ValueError("hidden states are not finite")
    least = _lower_bounds(magnitudes, top)
    places = np.empty((count, top), np.int64)
    for index, each in enumerate(magnitudes):
        places[index] = _largest_of(each, np.flatnonzero(each >= least[index]), top)
    return places


def _lower_bounds(magnitudes: Bits, top: int) -> Bits:
    """Return for each chunk a number that at least `top` of its values reach, but few more.

    It is the `top`-th largest of the maxima of groups of values. That is several times faster than
    a search among all values.
    """
    count, size = magnitudes.shape
    groups = min(size, _GROUPS_PER_VALUE * top)
    rows = size // groups
    maxima = magnitudes[:, : rows * groups].reshape(count, rows, groups).max(1)
    bounds: Bits = np.partition(maxima, groups - top, 1)[:, groups - top]
    return bounds


def _largest_of(magnitudes: Bits, candidates: Places, top: int) -> Places:
    """Return the places of the `top` largest values among the places `candidates`, ascending."""
    values = magnitudes[candidates]
    least = np.partition(values, len(values) - top)[len(values) - top]
    if least == 0:
        raise ValueError(f"a chunk has fewer than {top} values that are not zero")
    above, equal = candidates[values > least], candidates[values == least]
    return np.sort(np.concatenate((above, equal[: top - len(above)])))


def _modulus(places: Places) -> int:
    """Return the largest modulus, `PRIME` at most, under which all places differ."""
    if places[-1] < PRIME:
        return PRIME
    for modulus in range(PRIME, len(places) - 1, -1):
        if len(np.unique(places % modulus)) == len(places):
            return modulus
    raise ValueError("no modulus keeps the places of the largest values apart")


def _reduced(values: Elements) -> Elements:
    """Return `values` modulo `PRIME`. numpy divides by a constant much faster than it computes a
    remainder."""
    result: Elements = values - values // np.uint32(PRIME) * np.uint32(PRIME)
    return result


@cache
def _inverses() -> Elements:
    """Return the inverse of each element of the field; that of 0 is 0."""
    inverses = [0, 1]
    for number in range(2, PRIME):
        inverses.append((PRIME - PRIME // number) * inverses[PRIME % number] % PRIME)
    return np.array(inverses, np.uint32)


def _interpolated(x: Elements, y: Elements) -> Elements:
    """Return the coefficients [points, chunks], lowest first, of the polynomials through (x, y).

    Newton's divided differences come first. Horner's scheme then turns them into coefficients. Both
    take points² steps for each chunk.
    """
    count, prime, inverses = len(x), np.uint32(PRIME), _inverses()
    differences = y.copy()
    for order in range(1, count):
        steps = inverses[_reduced(x[order:] + prime - x[: count - order])]
        rises = _reduced(differences[order:] + prime - differences[order - 1 : -1])
        differences[order:] = _reduced(rises * steps)
    result = np.zeros_like(y)
    for index in range(count - 1, -1, -1):
        size = count - index
        products = _reduced(result[:size] * x[index])
        result[1:size] = _reduced(result[: size - 1] + prime - products[1:])
        result[0] = _reduced(differences[index] + prime - products[0])
    return result


def _evaluated(coefficients: Elements, x: Elements) -> Elements:
    """Return the values [points, chunks] at `x` of the polynomials with these coefficients."""
    result = np.zeros_like(x)
    for each in coefficients[::-1]:
        result = _reduced(_reduced(result * x) + each)
    return result

"""Sketches: 256 integers that tell a vector's length and its angle to other vectors.

When you want to compare the contributions of all peers without fetching any of them, compare their
sketches. A sketch is linear: the sketch of a sum is the sum of the sketches. So the sketches of all
contributions must add up to that of the update, and a peer cannot state a sketch of something else.

Definition. The vector is cut into rows of 256 elements. Each element is divided by the unit,
2^`unit_exponent`, and rounded to an integer. The seed gives each row 256 signs and a rotation.
Bucket b of the sketch is the sum over all rows of the element that the row's rotation moves to
column b, times its sign (`p2ptrain/kernels/sketch_reference.py` is exact about it). The sums are
integers, so the order of the additions, the number of threads and the processor do not matter.

Two elements of one row never share a bucket; elements of different rows share one with probability
1/256. So a length is estimated with a standard error of at most 4.4 % (1 / √512), and the cosine of
two vectors with one of at most (1 − cos²) · 6.3 %.

The estimate is good only if nobody could choose the vector after the seed was known. So the seed is
hashed from the digest of the roster entry, which fixes all claims, and from the digests of the
contributions. A proposer could try many rosters until the errors are in its favour, but it does not
know the contributions of others before the roster is decided
(docs/decisions/065-contributions-are-claims.md).

Nodes compute sketches during each average, in runs with claims (`p2ptrain/node/reduce`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2ptrain.ids import Digest
from p2ptrain.kernels import WIDTH, Sums, add_sketch

UNIT_BITS = 30
"""The largest element is about 2^30 units. So rounding changes a sketch by less than a billionth of
an honest length, and a sum of 2^40 elements still fits into 64 bits."""

_DOMAIN = b"p2ptrain sketch seed 1\n"


def seed_of(roster: Digest, contributions: Sequence[Digest]) -> int:
    """Return the seed of all sketches of an attempt. `contributions` are the digests of the
    contributions, in the roster's order."""
    named = b"".join(bytes.fromhex(each) for each in (roster, *contributions))
    return int.from_bytes(blake3(_DOMAIN + named).digest(8), "big")


def unit_exponent_of(element_max: float) -> int:
    """Return the unit's exponent in a run where an element of a contribution is at most
    `element_max`. `frexp` is exact, so all peers get the same unit; a logarithm is not."""
    if not (math.isfinite(element_max) and element_max > 0):
        raise ValueError(f"the bound on an element is {element_max}; it must be positive")
    return math.frexp(element_max)[1] - UNIT_BITS


def sketch(values: NDArray[np.float32], seed: int, unit_exponent: int, first: int = 0) -> Sums:
    """Return the sketch of the elements from `first` on of a vector. The sketches of the parts of a
    vector add up to the sketch of the vector, exactly.

    Raises ValueError: a value is not finite, or more than twice the bound that gave the unit. Check
    the peak of a contribution first.
    """
    sums = np.zeros(WIDTH, np.int64)
    add_sketch(values, seed, unit_exponent, first, sums)
    return sums


def length(sums: NDArray[np.int64] | NDArray[np.float64]) -> float:
    """Return the length of the vector with this sketch, in units. `fsum` is exact, so all peers
    that compare a length with a limit decide alike."""
    return math.sqrt(math.fsum(each * each for each in map(float, sums)))


def cosine(one: NDArray[np.float64] | Sums, other: NDArray[np.float64] | Sums) -> float:
    """Return the cosine of the angle between two vectors; 0 if one of them is zero."""
    lengths = length(one) * length(other)
    if lengths == 0:
        return 0.0
    return math.fsum(float(a) * float(b) for a, b in zip(one, other, strict=True)) / lengths

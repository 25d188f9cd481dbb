"""How far apart two floating-point results of one computation may be, and why.

Processors, BLAS builds, thread counts and rank counts each determine the order of a sum, and
whether a product and a sum are rounded together. All these results are right, and they differ in
their last bits. A test that compares such results takes its tolerance from here and not from
experience:

- A short computation, such as a norm, has a bound: `of_sum`, `of_additions`.
- A long computation, such as training steps, is repeated in fp64. The distance of one fp32 result
  from the fp64 result is the rounding error of this computation. Any other order of its sums has
  an error of the same size, so `assert_rounded_alike` allows `MARGIN` times this error.

Kernels, ledger, ring results and outer state are guaranteed to the bit: their tests compare bits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

UNIT = 2.0**-24
"""The largest relative error of one rounding to fp32: half of the distance from 1 to the next fp32
number."""

UNIT_BF16 = 2.0**-8
"""The largest relative error of one rounding to bf16, which has 8 significant bits. The relative
distance of two adjacent bf16 numbers is at most twice this."""

MARGIN = 8.0
"""The allowed error, as a multiple of the error of one fp32 run.

Measured on one processor (AMD Zen 4), with six AdamW steps: six row orders with each of ATen's
default and native code, oneDNN limited to AVX2, and MKL's compatible code. The 2-norms of the
weights' errors were within a factor of 3 of each other. The margin of 8 leaves room for processors
that we could not test. Deliberate faults in the computation caused errors of 47 times (no weight
decay) to several thousand times the error of one fp32 run.
"""

MARGIN_BF16 = 2.0
"""Like `MARGIN`, for computations that round intermediate results to bf16.

The rounding to bf16 causes nearly the entire error against fp64, and this error is nearly the same
for every order of the sums. In AdamW's first four steps, the error was 12 % of the distance that
the weights moved. The errors of five orders differed by at most 1 %.
"""


def of_sum(terms: int) -> float:
    """Return the relative error of an fp32 sum of `terms` numbers of one sign, or of their 2-norm.

    Rounding errors are practically independent, so they grow with √terms instead of terms (Higham
    and Mary, "A new approach to probabilistic rounding error analysis", 2019). The factor is six
    standard deviations, which are exceeded less than once in 10^8 computations.
    """
    return 6 * math.sqrt(terms) * UNIT


def of_additions(count: int, largest: float) -> float:
    """Return the absolute error after `count` fp32 additions whose results are at most
    `largest`."""
    return count * UNIT * largest


def distance(one: ArrayLike, other: ArrayLike) -> float:
    """Return the 2-norm of the difference, in fp64. One number that is far off dominates this norm.
    A few numbers with a different last bit hardly change it."""
    return float(np.linalg.norm(np.asarray(one, np.float64) - np.asarray(other, np.float64)))


def assert_rounded_alike(
    found: ArrayLike, exact: ArrayLike, *rounded: ArrayLike, terms: int = 1, margin: float = MARGIN
) -> None:
    """Check that `found` equals `exact` except for rounding: its distance from `exact` may be at
    most `margin` times the largest distance of any of `rounded`.

    Give several results of different orders, since the error of one could be small by chance. Each
    number of the result is itself a sum of `terms` numbers: the error of that sum is always
    allowed.
    """
    assert np.shape(found) == np.shape(exact)
    errors = [distance(each, exact) for each in rounded]
    summed = of_sum(terms) * float(np.linalg.norm(np.asarray(exact, np.float64)))
    far, allowed = distance(found, exact), max(summed, margin * max(errors, default=0.0))
    assert far <= allowed, f"{far:.2e} from the exact result; rounding explains {allowed:.2e}"


def nudged(weights: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
    """Return each weight as one more rounding could have left it: the next number up or down, or
    unchanged.

    Use this for training whose sums cannot be reordered: nudge the weights at each step, and see
    how far the result moves.
    """
    toward = random.choice(np.array([-np.inf, 0.0, np.inf]), weights.shape)
    moved = np.nextafter(weights, np.where(toward == 0, weights, toward).astype(np.float32))
    return np.where(weights == 0, weights, moved)

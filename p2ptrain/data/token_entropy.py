"""The entropy of the tokens of a run's data: the loss of a model that has learnt only how often
each token occurs. A model whose loss is below it has learnt something about the order of tokens.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def entropy_nats(counts: NDArray[np.int64]) -> float:
    """Return the entropy, in nats, of a distribution with these counts."""
    total = int(counts.sum())
    shares = [count / total for count in counts.tolist() if count]
    return -math.fsum(share * math.log(share) for share in shares)


def estimated_entropy_nats(counts: NDArray[np.int64]) -> float:
    """Return an estimate of the entropy, in nats, of data of which `counts` is a sample.

    A sample lacks rare tokens, so its own entropy is too small, on average by about (k - 1) / 2n
    for n tokens of k kinds. The estimate adds that (Miller and Madow, 1955)."""
    kinds, total = int(np.count_nonzero(counts)), int(counts.sum())
    return entropy_nats(counts) + (kinds - 1) / (2 * total)

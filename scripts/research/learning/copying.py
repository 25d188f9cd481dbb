"""Find the tokens that a model can predict by copying.

A token can be copied if the token before it occurred earlier, and was followed by this same token
at its last occurrence. It is a matter of chance when a small model learns to copy (an induction
head, arXiv 2209.11895). On these tokens, the losses of almost equal runs differ by half a nat, but
on all other tokens only by hundredths. So both losses are reported separately.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from p2ptrain.data.blocks import Tokens


def copied(rows: Tokens) -> NDArray[np.bool_]:
    """Return for each predicted token whether it can be copied: shape (rows, n) for n + 1 tokens.

    That is so if the token before it occurred earlier in the row, and was followed by this same
    token at its last occurrence.
    """
    found = np.zeros((len(rows), rows.shape[1] - 1), np.bool_)
    for row, marks in zip(rows.tolist(), found, strict=True):
        followed: dict[int, int] = {}
        for place, (token, then) in enumerate(pairwise(row)):
            marks[place] = followed.get(token) == then
            followed[token] = then
    return found

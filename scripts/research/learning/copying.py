"""Which tokens a model can have from copying: those that follow the same token as the last time.

When a small model learns to copy (an induction head, arXiv 2209.11895) is an accident: of such
tokens, runs that hardly differ end half a nat apart, of all others hundredths. So a loss says more
if both are told apart.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from p2ptrain.data.blocks import Tokens


def copied(rows: Tokens) -> NDArray[np.bool_]:
    """Of `rows` of n + 1 tokens, for each of the n that are predicted: whether the token before it
    stood in the row already, and the same one followed it when it last did.
    """
    found = np.zeros((len(rows), rows.shape[1] - 1), np.bool_)
    for row, marks in zip(rows.tolist(), found, strict=True):
        followed: dict[int, int] = {}
        for place, (token, then) in enumerate(pairwise(row)):
            marks[place] = followed.get(token) == then
            followed[token] = then
    return found

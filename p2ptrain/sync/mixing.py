"""Combine a merged fragment with the weights that were trained while it was averaged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def mix(local: Floats, outer: Floats, mixing: float) -> None:
    """Set `local` to α local + (1 − α) outer, in place, where α is `mixing`.

    With α = 0, `local` becomes an exact copy of `outer`, even if `local` had a NaN.
    """
    if mixing == 0:
        np.copyto(local, outer)
        return
    np.multiply(local, np.float32(mixing), out=local)
    np.add(local, outer * np.float32(1 - mixing), out=local)

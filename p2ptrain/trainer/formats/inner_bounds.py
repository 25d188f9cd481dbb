"""Check that another peer's inner optimizer state could be the result of training.

A matching digest does not mean that the values are sensible, and one bad value would disturb an
element's training for thousands of inner steps. Two statements hold for every state that training
can produce, whatever the data:

- AdamW computes both of its means from the same gradients. With m = (1 − β₁) Σ β₁ⁱ gᵢ and
  v = (1 − β₂) Σ β₂ⁱ gᵢ², the Cauchy–Schwarz inequality gives
  |m| ≤ (1 − β₁) / √((1 − β₂) (1 − β₁² / β₂)) · √v.
  The factor is 1.17 for 0.9 and 0.95. So even with an invented state, the first step moves an
  element by little more than the learning rate.
- The gradient over all parameters is clipped to the length `clip`. The mean of vectors of at most
  that length has at most that length, too: Σ v ≤ clip², and for Muon's momentum Σ m² ≤ clip². So a
  lying peer cannot make a second moment so large that an element stops moving for the rest of the
  run. This check is skipped in a run that does not clip gradients.

A lying peer can still send a momentum with a wrong direction, which affects about ten inner steps.
"""

from __future__ import annotations

import math
import os

import numpy as np
from numpy.typing import NDArray

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ipc.trainer_config import InnerSpec
from p2ptrain.state.layout import Layout, LayoutEntry
from p2ptrain.trainer.formats.inner_format import FLOAT_BYTES, HEADER_BYTES, vector_bytes

PIECE_ELEMENTS = 1 << 20
"""Number of elements that are read at a time."""

SLACK = 1.05
"""Factor by which the bounds are raised to allow for rounding: the means and the length of the
clipped gradient are computed in fp32."""

TINY = 1e-18
"""Excess of |m| that is always allowed, because the squares of such small gradients underflow to
zero in fp32. A step with such a mean is negligible, because AdamW's ε is 1e-8."""


def is_muons(entry: LayoutEntry, inner: InnerSpec) -> bool:
    """Return whether Muon trains this parameter. If the run uses Muon, it trains the matrices
    inside transformer blocks (see `rank.optimizer`)."""
    return inner.is_muon and len(entry.shape) == 2 and entry.name.startswith("blocks.")


def ratio_max(inner: InnerSpec) -> float:
    """Return the largest |m| ÷ √v that AdamW can reach: the factor in the first statement above."""
    slow, fast = inner.betas[1], inner.betas[0]
    assert fast**2 < slow, "checked by InnerSpec"
    return (1 - fast) / math.sqrt((1 - slow) * (1 - fast**2 / slow))


def check(
    fd: int, layout: Layout, inner: InnerSpec, *, piece_elements: int = PIECE_ELEMENTS
) -> None:
    """Check the two vectors in the file of a state, reading them once.

    Raises:
        RemoteProtocolError: training cannot produce such a state.
        OSError.
    """
    of_adamw, of_muon, end = 0.0, 0.0, 0
    for entry in layout.entries:
        _check_padding(fd, layout, end, entry.offset)
        for start in range(entry.offset, entry.end, piece_elements):
            stop = min(start + piece_elements, entry.end)
            first, second = (_read(fd, layout, which, start, stop) for which in (0, 1))
            if not (np.isfinite(first).all() and np.isfinite(second).all()):
                raise RemoteProtocolError("it contains a number that is not finite")
            if is_muons(entry, inner):
                of_muon += _check_muon(first, second)
            else:
                of_adamw += _check_adamw(first, second, inner)
        end = entry.end
    _check_padding(fd, layout, end, layout.numel)
    longest = inner.clip**2 * SLACK if inner.clip > 0 else math.inf
    if not (of_adamw <= longest and of_muon <= longest):
        raise RemoteProtocolError(
            f"its means imply gradients longer than {inner.clip:g}, the length to which "
            "gradients are clipped"
        )


def _check_muon(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Return Σ m² of a piece of Muon's momentum."""
    if second.any():
        raise RemoteProtocolError("it contains second moments, which Muon does not have")
    wide = first.astype(np.float64)
    return float(wide @ wide)


def _check_adamw(
    first: NDArray[np.float32], second: NDArray[np.float32], inner: InnerSpec
) -> float:
    """Return Σ v of a piece of AdamW's means."""
    squares = second.astype(np.float64)
    if (second < 0).any():
        raise RemoteProtocolError("it contains a mean of squares below zero")
    if (np.abs(first) > SLACK * ratio_max(inner) * np.sqrt(squares) + TINY).any():
        raise RemoteProtocolError("it contains a mean that is too large for its mean of squares")
    return float(squares.sum())


def _check_padding(fd: int, layout: Layout, start: int, stop: int) -> None:
    if any(_read(fd, layout, which, start, stop).any() for which in (0, 1)):
        raise RemoteProtocolError("it contains numbers outside the parameters")


def _read(fd: int, layout: Layout, which: int, start: int, stop: int) -> NDArray[np.float32]:
    offset = HEADER_BYTES + which * vector_bytes(layout) + start * FLOAT_BYTES
    return np.frombuffer(os.pread(fd, (stop - start) * FLOAT_BYTES, offset), dtype="<f4")

"""Check that another peer's inner optimizer state could be the result of training.

A digest does not show that the bytes are sensible, and a state is used element by element for
thousands of inner steps. Two statements hold for every state that training can produce, whatever
the data:

- AdamW computes both of its means from the same gradients. With m = (1 − β₁) Σ β₁ⁱ gᵢ and
  v = (1 − β₂) Σ β₂ⁱ gᵢ², the Cauchy–Schwarz inequality gives
  |m| ≤ (1 − β₁) / √((1 − β₂) (1 − β₁² / β₂)) · √v.
  The factor is 1.17 for 0.9 and 0.95. So even with an invented state, the first step moves an
  element by little more than the learning rate.
- The gradient over all parameters is clipped to the length `clip`. The mean of vectors of at most
  that length has at most that length, too: Σ v ≤ clip², and for Muon's momentum Σ m² ≤ clip². So a
  lying peer cannot make a second moment so large that an element stops moving for the rest of the
  run.

The second check is skipped in a run that does not clip gradients.

A lying peer can still choose a direction that is wrong for about ten inner steps. This module does
not know peers or torch.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ipc.trainer_config import InnerSpec
from p2ptrain.state.layout import Layout, LayoutEntry
from p2ptrain.trainer.formats.inner_format import FLOAT_BYTES, HEADER_BYTES, vector_bytes

PIECE_ELEMENTS = 1 << 20

SLACK = 1.05
"""Factor by which the bounds are raised to allow for rounding: the means and the length of the
clipped gradient are computed in fp32."""

TINY = 1e-18
"""Difference that is always allowed. The square of such a small gradient underflows in fp32. Its
step is negligible, because AdamW's ε is 1e-8."""


def is_muons(entry: LayoutEntry, inner: InnerSpec) -> bool:
    """Return whether Muon trains this parameter: a matrix inside a block (see `optimizer`)."""
    return inner.is_muon and len(entry.shape) == 2 and entry.name.startswith("blocks.")


def ratio_max(inner: InnerSpec) -> float:
    """Return the largest possible |m| ÷ √v."""
    slow, fast = inner.betas[1], inner.betas[0]
    assert fast**2 < slow, "checked by InnerSpec"
    return (1 - fast) / math.sqrt((1 - slow) * (1 - fast**2 / slow))


@dataclass(slots=True)
class _Sums:
    squares: float = 0.0
    muon: float = 0.0


def check(fd: int, layout: Layout, inner: InnerSpec) -> None:
    """Check the two vectors in the file of a state, reading them once.

    Raises:
        RemoteProtocolError: training cannot produce such a state.
        OSError.
    """
    sums, end = _Sums(), 0
    for entry in layout.entries:
        _check_padding(fd, layout, end, entry.offset)
        for start in range(entry.offset, entry.end, PIECE_ELEMENTS):
            stop = min(start + PIECE_ELEMENTS, entry.end)
            first, second = (_read(fd, layout, which, start, stop) for which in (0, 1))
            _check_piece(first, second, inner, sums, muons=is_muons(entry, inner))
        end = entry.end
    _check_padding(fd, layout, end, layout.numel)
    longest = inner.clip**2 * SLACK if inner.clip > 0 else math.inf
    if not (sums.squares <= longest and sums.muon <= longest):
        raise RemoteProtocolError(
            f"its means imply gradients longer than {inner.clip:g}, the length to which "
            "gradients are clipped"
        )


def _check_piece(
    first: NDArray[np.float32],
    second: NDArray[np.float32],
    inner: InnerSpec,
    sums: _Sums,
    *,
    muons: bool,
) -> None:
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise RemoteProtocolError("it holds a number that is not finite")
    wide, squares = first.astype(np.float64), second.astype(np.float64)
    if muons:
        if second.any():
            raise RemoteProtocolError("it holds second moments, which Muon does not have")
        sums.muon += float(wide @ wide)
        return
    if (second < 0).any():
        raise RemoteProtocolError("it holds a mean of squares below zero")
    if (np.abs(wide) > SLACK * ratio_max(inner) * np.sqrt(squares) + TINY).any():
        raise RemoteProtocolError("it holds a mean that is too large for its mean of squares")
    sums.squares += float(squares.sum())


def _check_padding(fd: int, layout: Layout, start: int, stop: int) -> None:
    if any(_read(fd, layout, which, start, stop).any() for which in (0, 1)):
        raise RemoteProtocolError("it holds numbers outside the parameters")


def _read(fd: int, layout: Layout, which: int, start: int, stop: int) -> NDArray[np.float32]:
    offset = HEADER_BYTES + which * vector_bytes(layout) + start * FLOAT_BYTES
    return np.frombuffer(os.pread(fd, (stop - start) * FLOAT_BYTES, offset), dtype="<f4")

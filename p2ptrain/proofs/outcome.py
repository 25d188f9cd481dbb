"""Judge a contribution by its outcome, however it was made: memory and harm.

    memory   how much more the contribution lowers the loss on rows of its own lease than on rows
             that nobody trained on. Copied, invented and repeated contributions have no memory of
             their lease.
    harm     how much a quarter of the contribution raises the loss on rows that nobody trained on

Both are differences between losses of the same rows with and without the contribution, so rows
that are hard to predict do not matter. A whole honest contribution often *raises* the loss, since
only the mean of many is better than θ. So harm is measured with a quarter, and both are judged
beside the other contributions of the same outer step. Memory depends on the run: there is almost
none at its beginning.

Neither rule judges without statistical power. A rule accuses only if its error explains the
difference with a probability below 0.2 % (`CLEAR` standard errors), and memory is judged only if a
contribution without memory would be accused. The module's input are losses of rows; it does not
know models. No node measures outcomes yet.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Losses = NDArray[np.float64]
"""The mean loss of each row, in nats a token."""

QUARTER = 0.25

CLEAR = 3.0
"""Standard errors by which a difference must exceed a limit before it counts."""

MEMORY_SHARE_MIN = 0.5
"""The least memory of a contribution, as a share of the median."""

HARM_SPREADS = 4.0
"""The largest harm above the median of the others, in units of their spread."""

JUDGES_MIN = 3


@dataclass(frozen=True, slots=True)
class RowLosses:
    """Losses with one contribution. `own` and `other` are rows of its lease, and rows that nobody
    trained on; all contributions of an outer step are measured on the same `other` rows.

    Raises ValueError: the shapes do not fit, or there are fewer than two rows.
    """

    own_before: Losses
    own_after: Losses
    other_before: Losses
    other_after: Losses
    other_quarter: Losses

    def __post_init__(self) -> None:
        own = {self.own_before.shape, self.own_after.shape}
        other = {each.shape for each in (self.other_before, self.other_after, self.other_quarter)}
        if len(own) != 1 or len(other) != 1 or min(self.own_after.size, self.other_after.size) < 2:
            raise ValueError("losses before and after need the same two or more rows")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Memory and harm with their standard errors, in nats a token."""

    memory: float
    memory_error: float
    harm: float
    harm_error: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """`suspect` says which rule the contribution breaks, if any. `has_power` says whether the rule
    about memory could accuse anybody in this outer step."""

    suspect: Literal["", "memory", "harm"]
    has_power: bool
    words: str


def outcome_of(losses: RowLosses) -> Outcome:
    gained_own = losses.own_before - losses.own_after
    gained_other = losses.other_before - losses.other_after
    lost = losses.other_quarter - losses.other_before
    return Outcome(
        float(gained_own.mean() - gained_other.mean()),
        math.hypot(_error(gained_own), _error(gained_other)),
        float(lost.mean()),
        _error(lost),
    )


def judge(outcomes: Sequence[Outcome], which: int) -> Judgement:
    """Judge one of the outer step's contributions beside the others. `outcomes` are those that are
    known: all of them if possible."""
    others = [each for number, each in enumerate(outcomes) if number != which]
    if len(outcomes) < JUDGES_MIN:
        return Judgement("", False, "there are too few contributions to compare with")
    one = outcomes[which]
    if not math.isfinite(one.harm) or not math.isfinite(one.memory):
        return Judgement("harm", False, "the loss with this contribution is not finite")
    usual, power = usual_memory(others)
    limit = harm_limit(others)
    if one.harm - CLEAR * one.harm_error > max(0.0, limit):
        words = f"a quarter of it raises the loss by {one.harm:.3g}; the limit is {limit:.3g}"
        return Judgement("harm", power, words)
    least = MEMORY_SHARE_MIN * usual
    if not power:
        return Judgement("", False, f"the usual memory of {usual:.3g} is within its error")
    if one.memory + CLEAR * one.memory_error < least:
        words = (
            f"its memory of its lease is {one.memory:.3g}, at most "
            f"{one.memory + CLEAR * one.memory_error:.3g}; the minimum is {least:.3g}"
        )
        return Judgement("memory", True, words)
    return Judgement("", True, "it does what contributions of this outer step do")


def usual_memory(others: Sequence[Outcome]) -> tuple[float, bool]:
    """Return the median memory, and whether a contribution without memory would be accused."""
    usual = statistics.median(each.memory for each in others)
    error = statistics.median(each.memory_error for each in others)
    return usual, MEMORY_SHARE_MIN * usual > CLEAR * error


def harm_limit(others: Sequence[Outcome]) -> float:
    """Return the largest harm that others make plausible: their median, and a multiple of their
    spread, or of their error if that is larger. A contribution that lowers the loss is harmless in
    any case."""
    usual = statistics.median(each.harm for each in others)
    spread = statistics.median(abs(each.harm - usual) for each in others)
    error = statistics.median(each.harm_error for each in others)
    return usual + HARM_SPREADS * max(spread, error)


def _error(values: Losses) -> float:
    return float(np.sqrt(values.var(ddof=1) / values.size))

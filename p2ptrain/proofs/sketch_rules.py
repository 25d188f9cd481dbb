"""Rules for the length and the direction of contributions, judged from their sketches alone.

Each rule is a pure function of the statements of one outer step. It returns findings: the accused
participants, the rule, the measured value with its limit, and the reason in words. A finding is a
judgement within a tolerance, and not a proof. All sums are exact (`fsum`), and other operations are
those of IEEE 754 in a fixed order. So all peers that judge the same statements and expectations
decide alike.

    length     within limits of what the inner steps of this participant should give
    direction  not against the mean of the others
    twin       not the same as another participant's
    sum        the weighted sketches add up to the sketch of the update, part by part

Successive inner steps point in similar directions, because the inner optimizer keeps a momentum:
two steps that are n apart have a cosine of about 0.9^n. `expected_length` adds up such steps: the
result grows in proportion to a few steps, and as the square root of many. The scale is the median
over the participants, so the rule needs no history, and holds as long as most participants are
honest. Therefore the first three rules need `JUDGES_MIN` participants.

The limits come from measurements (docs/results/trust.md, docs/decisions/068). Nodes apply the rules
before they report an average (`p2ptrain/node/reduce/sketch_judging.py`, docs/decisions/072).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from p2ptrain.kernels import CodecName, Sums
from p2ptrain.proofs.sketches import cosine, length

Rule = Literal["length", "direction", "twin", "sum"]

CORRELATION = 0.9
"""The cosine of two successive inner steps: the momentum of AdamW and Muon with usual settings."""

LENGTH_RATIO_MAX = 2.5
"""Limit on a length divided by its expectation, and on the inverse, for a participant with the
median expectation. For others, the limit grows with the eighth root of the ratio of the two
expectations: 1.4 times for 20 times as many or as few inner steps."""

COSINE_MIN = -0.2
"""Three standard errors of a cosine below 0. Honest contributions point towards the mean."""

TWIN_COSINE_MAX = 0.99
"""Honest peers reach 0.98 early in a run. There, the standard error of a cosine is 0.0025."""

JUDGES_MIN = 3

ROUNDING: dict[CodecName, float] = {"fp32": 0.0, "fp16": 0.0003, "int8": 0.007, "int4": 0.11}
"""Length of a codec's rounding error relative to the vector, for one rounding of normally
distributed elements in blocks of 256 (int4: 64)."""

ROUNDING_MARGIN = 2.0
"""Limit of the rule about sums, in units of the expected rounding error."""

SHARE_MAX = 2 / 3
"""The rule about sums detects a participant that states nothing of what it sent, with a margin of
1.5, if rounding alone may explain at most this share of a contribution."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A participant's sketch, its `expected_length` in any unit, and its weight in the mean.
    `shortest` is the length to expect if its trainer has just begun, in a run where the learning
    rate of such a trainer rises first; None if that makes no difference."""

    sums: Sums
    expected: float
    weight: int
    shortest: float | None = None

    def __post_init__(self) -> None:
        assert self.expected > 0, "a participant without inner steps does not contribute"
        assert 0 < self.least <= self.expected, "no trainer makes longer steps because it is new"
        assert self.weight > 0, "the ledger refuses a participant without tokens"

    @property
    def least(self) -> float:
        return self.expected if self.shortest is None else self.shortest


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule. `participants` are positions in the list that was judged; it is empty if the
    rule does not tell who broke it."""

    rule: Rule
    participants: tuple[int, ...]
    value: float
    limit: float
    words: str


def expected_length(rates: Sequence[float]) -> float:
    """Return the length to expect of a contribution, in an arbitrary unit that is the same for all
    participants, from the learning rates of its inner steps in order. A rate that was computed with
    a cosine can differ in its last bit between machines; so can the result."""
    square, ahead = 0.0, 0.0
    for rate in rates:
        square += rate * (rate + 2 * ahead)
        ahead = CORRELATION * (ahead + rate)
    return math.sqrt(square)


def judge(all_judged: Sequence[Judged], *, lengths: bool = True) -> list[Finding]:
    """Return the findings of the rules for length, direction and twins. With fewer than
    `JUDGES_MIN` participants nobody can tell which of them is odd, so there are none. `lengths`:
    whether the expected lengths are known well enough to compare them.
    """
    if len(all_judged) < JUDGES_MIN:
        return []
    odd = odd_lengths(all_judged) if lengths else []
    return [*odd, *opposed(all_judged), *twins(all_judged)]


def accused_by(findings: Sequence[Finding], participants: int) -> tuple[int, ...]:
    """Return the participants that the findings accuse, in order. If they are more than half of
    all, most participants are odd, so the rules do not tell who is honest, and nobody is accused.
    """
    accused = sorted({who for each in findings for who in each.participants})
    return tuple(accused) if 2 * len(accused) <= participants else ()


def length_ratios(all_judged: Sequence[Judged]) -> list[float]:
    """Return each length divided by its expectation, which is the median of all participants,
    corrected for the differences between their inner steps."""
    scaled = [length(each.sums) / each.expected for each in all_judged]
    usual = statistics.median(scaled)
    return [each / usual if usual > 0 else math.inf for each in scaled]


def length_limit(expected: float, usual: float) -> float:
    """Return the limit on a length divided by its expectation, and on the inverse, where `usual` is
    the median of all expectations."""
    unlike = max(expected / usual, usual / expected)
    return LENGTH_RATIO_MAX * math.sqrt(math.sqrt(math.sqrt(unlike)))


def odd_lengths(all_judged: Sequence[Judged]) -> list[Finding]:
    """Find contributions that are longer or shorter than their inner steps explain.

    Any trainer may have just begun, since trainers restart. So a contribution is too short only if
    it is too short for a trainer that has just begun, among others that have not. It is too long
    only if it would be too long among others that have all just begun.
    """
    usual = statistics.median(each.expected for each in all_judged)
    lengths = [length(each.sums) for each in all_judged]
    scale = statistics.median(
        long / each.expected for long, each in zip(lengths, all_judged, strict=True)
    )
    scale_max = statistics.median(
        long / each.least for long, each in zip(lengths, all_judged, strict=True)
    )
    found = []
    for who, (each, long) in enumerate(zip(all_judged, lengths, strict=True)):
        limit = length_limit(each.expected, usual)
        over = long / (each.expected * scale_max) if scale_max > 0 else math.inf
        under = long / (each.least * scale) if scale > 0 else math.inf
        if over > limit or under < 1 / limit:
            ratio = over if over > limit else under
            words = (
                f"its length is {ratio:.3g} times what its inner steps should give; "
                f"the limits are {1 / limit:.2g} and {limit:.2g}"
            )
            found.append(Finding("length", (who,), ratio, limit, words))
    return found


def opposed(all_judged: Sequence[Judged]) -> list[Finding]:
    """Find contributions that point against the weighted mean of all others."""
    total = _weighted_sum(all_judged)
    found = []
    for who, each in enumerate(all_judged):
        value = cosine(each.sums, total - each.weight * each.sums.astype(np.float64))
        if value < COSINE_MIN:
            words = (
                f"its cosine to the mean of the others is {value:.2f}; "
                f"the minimum is {COSINE_MIN:g}"
            )
            found.append(Finding("direction", (who,), value, COSINE_MIN, words))
    return found


def twins(all_judged: Sequence[Judged]) -> list[Finding]:
    """Find pairs of contributions that are nearly the same. The sketches do not tell who copied."""
    found = []
    for who, other in _likely_twins(all_judged):
        value = cosine(all_judged[who].sums, all_judged[other].sums)
        if value > TWIN_COSINE_MAX:
            words = (
                f"the cosine of two contributions is {value:.4f}; "
                f"the maximum is {TWIN_COSINE_MAX:g}, so one is a copy of the other"
            )
            found.append(Finding("twin", (other, who), value, TWIN_COSINE_MAX, words))
    return found


def _likely_twins(all_judged: Sequence[Judged]) -> list[tuple[int, int]]:
    """Return the pairs that can exceed the limit. Exact cosines of all pairs of 1,024 participants
    would take a minute. A matrix product is off by less than 1e-12, so it can exclude most pairs.
    """
    rows = np.stack([each.sums.astype(np.float64) for each in all_judged])
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    rows /= np.where(norms > 0, norms, 1.0)
    likely = np.argwhere(np.tril(rows @ rows.T, -1) > TWIN_COSINE_MAX - 1e-6)
    return [(int(who), int(other)) for who, other in likely]


def unlike_update(
    all_judged: Sequence[Judged], update: Sums, codec: CodecName, roundings: int
) -> Finding | None:
    """Return a finding if the statements of all participants do not add up to the update, in the
    whole vector or in one part of it.

    `roundings` is how often a sum is rounded on its way, the final rounding included: the number of
    participants in a ring, 2 in the schedule "direct". Rounding errors are independent, so their
    length grows with the square root. The difference is stated in shares: 1 is the mean length of a
    contribution divided by the number of participants, which is what one of them can move the mean.
    """
    mean, share = _mean_and_share(all_judged)
    if share == 0:
        return None
    value = length(mean - update.astype(np.float64)) / share
    limit = sum_limit(codec, roundings, length(mean) / share)
    if value <= limit:
        return None
    words = (
        f"the statements differ from the update by {value:.2g} times one participant's share; "
        f"rounding in {codec} explains {limit:.2g}"
    )
    return Finding("sum", (), value, limit, words)


def hides_a_share(all_judged: Sequence[Judged], codec: CodecName, roundings: int) -> bool:
    """Return whether rounding could hide a whole contribution from the rule about the sums of these
    sketches (`is_too_coarse`)."""
    mean, share = _mean_and_share(all_judged)
    return share > 0 and is_too_coarse(codec, roundings, length(mean) / share)


def _mean_and_share(all_judged: Sequence[Judged]) -> tuple[NDArray[np.float64], float]:
    """Return the mean of the sketches, and how far one participant can move it: the mean length of
    a contribution divided by the number of participants."""
    weights = math.fsum(each.weight for each in all_judged)
    lengths = math.fsum(each.weight * length(each.sums) for each in all_judged)
    return _weighted_sum(all_judged) / weights, lengths / weights / len(all_judged)


def sum_limit(codec: CodecName, roundings: int, mean_in_shares: float) -> float:
    """Return the largest honest difference between the statements and the update, in shares, for a
    mean of the given length. At least a hundredth, since sketches are rounded to units."""
    return max(0.01, ROUNDING_MARGIN * ROUNDING[codec] * math.sqrt(roundings) * mean_in_shares)


def is_too_coarse(codec: CodecName, roundings: int, mean_in_shares: float) -> bool:
    """Return whether the codec's rounding could hide a whole contribution from the rule about sums.
    Then only the exact recomputation of chunks finds a wrong statement."""
    return sum_limit(codec, roundings, mean_in_shares) > SHARE_MAX


def _weighted_sum(all_judged: Sequence[Judged]) -> NDArray[np.float64]:
    """Return Σ weight · sketch. Each addition is elementwise, in the order of the participants."""
    total = np.zeros(len(all_judged[0].sums), np.float64)
    for each in all_judged:
        total += each.weight * each.sums.astype(np.float64)
    return total

"""Compare the losses of an arm with those of its reference, and with its required result.

Arms with equal seeds have equal initial weights, and equal tokens in equal order. So an arm is
compared with its reference seed by seed, by the mean and the standard deviation of the differences.
A mean of at most two standard deviations is a tie. One or two seeds do not prove a difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scripts.research.learning.record import Record

SEEDS_ASKED = 3

Losses = Mapping[int, float]
"""Loss by seed, in nats."""


def by_arm(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda each: (each.arm, each.seed)):
        found.setdefault(record.arm, []).append(record)
    return found


def losses_of(records: Iterable[Record]) -> Losses:
    return _by_seed(records, lambda each: each.loss)


def losses_on_strangers(records: Iterable[Record]) -> Losses:
    return _by_seed(records, lambda each: each.strangers_loss)


def losses_copied(records: Iterable[Record]) -> Losses:
    return _by_seed(records, lambda each: each.copied_loss)


def other_losses(records: Iterable[Record]) -> Losses:
    return _by_seed(records, lambda each: each.other_loss)


def _by_seed(records: Iterable[Record], of: Callable[[Record], float | None]) -> Losses:
    return {each.seed: loss for each in records if (loss := of(each)) is not None}


def differences(losses: Losses, reference: Losses) -> list[float]:
    return [losses[seed] - reference[seed] for seed in sorted(losses.keys() & reference.keys())]


def ratios(losses: Losses, reference: Losses) -> list[float]:
    return [losses[seed] / reference[seed] for seed in sorted(losses.keys() & reference.keys())]


def verdict(differences: Sequence[float]) -> str:
    """Return a verdict on the differences, or the number of seeds if there are fewer than three."""
    if len(differences) < SEEDS_ASKED:
        return "one seed" if len(differences) == 1 else "two seeds"
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if abs(mean) <= 2 * deviation:
        return "tie"
    return "higher" if mean > 0 else "lower"


@dataclass(frozen=True, slots=True)
class Asked:
    """A required result: the mean over the seeds of the ratio (÷) or difference (−) of an arm's
    loss and its reference's is at most `most`."""

    sign: Literal["÷", "−"]
    most: float

    def __str__(self) -> str:
        return f"{self.sign} ≤ {self.most:g}"

    def found(self, losses: Losses, reference: Losses) -> list[float]:
        """Return the ratio or difference for each seed that has both losses."""
        compare = ratios if self.sign == "÷" else differences
        return compare(losses, reference)

    def verdict(self, values: Sequence[float]) -> str:
        """Return in words whether the requirement is met.

        If the bound lies within two standard errors of the mean, three other seeds might give a
        different verdict.
        """
        mean = statistics.fmean(values)
        word = "met" if mean <= self.most else "**missed**"
        if len(values) < SEEDS_ASKED:
            return f"so far {word}"
        error = statistics.stdev(values) / math.sqrt(len(values))
        return f"{word}, within the noise" if abs(mean - self.most) < 2 * error else word

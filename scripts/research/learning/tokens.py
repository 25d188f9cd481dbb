"""How many tokens an arm spends for each token that ordinary training needs for the same loss.

Ratios of losses make an arm look better than it is: a peer that never averages ends at 1.097 times
the loss of ordinary training. Ordinary training was run with two lengths, each with a learning rate
that falls until the end. Between them, its loss is assumed to fall by the same amount for each
doubling of the tokens:

    loss(tokens) = loss of the whole run + (nats for a doubling) · log2(whole run ÷ tokens)

The nats for a doubling come from the seeds that have both lengths, and the loss of the whole run
comes from the arm's own seed. If a loss is above that of the half run, the figure is extrapolated,
and marked.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripts.research.learning.compared import differences, losses_of
from scripts.research.learning.record import Record

LONE_PEERS = 4
"""Number of peers that train in parallel in the arm `alone`, each on its own share of the data. The
arm is one of these peers."""

NO_DATA = "no data"
EXTRAPOLATED = " *"


@dataclass(frozen=True, slots=True)
class Ordinary:
    """The results of ordinary training: the loss of its whole run by seed, and the nats by which a
    doubling of its tokens lowers the loss."""

    tokens: int
    losses: Mapping[int, float]
    nats: float

    @classmethod
    def of(cls, found: Mapping[str, Sequence[Record]]) -> Ordinary | None:
        """Return the results of the arms `dp` and `dp-short`; None if one of them is missing."""
        whole, half = found.get("dp", ()), found.get("dp-short", ())
        gained = differences(losses_of(half), losses_of(whole))
        if not gained or min(gained) <= 0:
            return None
        assert whole[0].tokens == 2 * half[0].tokens
        return cls(whole[0].tokens, losses_of(whole), statistics.fmean(gained))

    def doublings(self, record: Record) -> float | None:
        """Return how often the tokens of ordinary training can be halved until it ends at the loss
        of `record`; None if that is unknown."""
        comparable = record.settings.get("start") is not None and record.seed in self.losses
        if record.loss is None or not comparable:
            return None
        return (record.loss - self.losses[record.seed]) / self.nats

    def cell(self, records: Sequence[Record]) -> str:
        """Return the mean over the seeds of the tokens spent for each token that ordinary training
        needs."""
        known = [(each, count) for each in records if (count := self.doublings(each)) is not None]
        if not known:
            return NO_DATA
        values = [spent(each) / self.tokens * 2**count for each, count in known]
        text = f"{statistics.fmean(values):.2f}"
        if len(values) > 1:
            text += f" ± {statistics.stdev(values):.2f}"
        return text + EXTRAPOLATED * (max(count for _, count in known) > 1)

    @property
    def explained(self) -> str:
        return (
            "*Tokens for the same loss* is the number of tokens that all peers of an arm trained "
            "on, divided by the number that ordinary training needs to end at the same loss. It "
            "includes the work of peers that were killed, and of the three others that train "
            "`alone`. It is computed from ordinary "
            f"training over two lengths, where a doubling is worth {self.nats:.4f} nats (one "
            "seed). A star marks a loss above that of the shorter length: the figure is "
            "extrapolated. There is no data for arms that start from the initial weights, since "
            "ordinary training from these was run with one length only."
        )


def spent(record: Record) -> int:
    """Return the tokens that all peers of the arm trained on, whether or not they were averaged."""
    settings = record.settings
    if settings["churn"] is not None:
        return int(
            settings["batch_sequences"] * settings["model"]["sequence"] * settings["total_steps"]
        )
    return record.tokens * (LONE_PEERS if record.arm == "alone" else 1)

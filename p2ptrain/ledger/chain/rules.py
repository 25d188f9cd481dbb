"""The rules of a run that all members must agree on, taken from the run's manifest. They never
change during a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from p2ptrain.ids import PeerId, RunId, is_digest

QuorumPolicy = Literal["majority", "two-thirds"]
QuorumLoss = Literal["wait", "branch"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The policies of one run.

    - `grace_s`: how long a ready quorum waits for the other members before it averages without
      them.
    - `patience_s`: how long a failed reduce waits for further reports before it is retried.
    - `branch_after_s`: with `quorum_loss` "branch", how long voters wait for a quorum before they
      branch off.
    - `founders_vote`: only founders ever vote, as in open runs (see `founders`).
    - `reduce_s`: a reduce fails if no report about it arrives for this long.
    - `blocks_per_lease`: the number of data blocks that a member may hold for one outer step.
    """

    run: RunId
    founders: tuple[PeerId, ...]
    outer_steps: int
    blocks: int
    blocks_per_lease: int
    tokens_per_block: int
    participants_min: int = 1
    attempts_max: int = 4
    grace_s: float = 30.0
    round_timeout_s: float = 2.0
    patience_s: float = 1.0
    quorum: QuorumPolicy = "majority"
    quorum_loss: QuorumLoss = "wait"
    branch_after_s: float = 600.0
    founders_vote: bool = False
    reduce_s: float = math.inf

    def __post_init__(self) -> None:
        _check(is_digest(self.run), "the run's name must be a digest")
        _check(len(self.founders) > 0, "a run needs a founder")
        _check(len(set(self.founders)) == len(self.founders), "each founder must be named once")
        _check(
            self.outer_steps > 0 and self.attempts_max > 0,
            "a run needs at least one step and one attempt",
        )
        _check(self.blocks > 0 and self.tokens_per_block > 0, "a run needs data")
        _check(
            self.blocks_per_lease > 0 and self.participants_min > 0,
            "blocks_per_lease and participants_min must be above 0",
        )
        _check(
            self.grace_s >= 0 and self.patience_s >= 0,
            "grace_s and patience_s must not be negative",
        )
        _check(self.round_timeout_s > 0, "round_timeout_s must be above 0")
        _check(
            self.quorum in ("majority", "two-thirds"),
            "the quorum must be a majority or two thirds",
        )
        _check(
            self.quorum_loss in ("wait", "branch"),
            "the run must wait or branch off when it loses its quorum",
        )
        _check(self.reduce_s > 0, "reduce_s must be above 0")
        _check(self.branch_after_s > 0, "branch_after_s must be above 0")

    @property
    def branches(self) -> bool:
        return self.quorum_loss == "branch"

    def data_block(self, block: int) -> int:
        """Return the index of the data block for block id `block`. Ids keep rising over all passes
        through the data.
        """
        return block % self.blocks


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)

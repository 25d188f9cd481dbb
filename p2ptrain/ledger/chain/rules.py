"""The rules of a run that all members share. They come from the run's manifest and never change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from p2ptrain.ids import PeerId, RunId, is_digest

QuorumPolicy = Literal["majority", "two-thirds"]
QuorumLoss = Literal["wait", "branch"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one run.

    - `run`: the digest of the run's manifest.
    - `blocks`: the number of blocks of training data.
    - `blocks_per_lease`: the number of data blocks that a member gets for one outer step.
    - `grace_s`: how long a ready quorum waits for the other members, at most, before it averages
      without them.
    - `patience_s`: how long nodes wait for further reports about a failed reduce before a retry.
    - `quorum_loss`: whether voters that lose their quorum wait for it, or start a branch without it
      after `branch_after_s`.
    - `founders_vote`: only founders ever vote, as in open runs (see `founders`).
    - `reduce_s`: a reduce fails if no report about it arrives for this long.
    - `absent_s`: a voter that has been down for this long loses its vote, in an open run with
      delegates. Half an hour is longer than a machine takes to restart or to be updated. A founder
      that is back gets its vote again at once.
    - `claims`: each participant of a reduce is bound to a signed claim about its contribution (see
      SPEC.md, C1 to C5).
    - `audits`: auditors check claims, and can exclude peers from averages (see SPEC.md, A1 to A8).
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
    absent_s: float = 1800.0
    claims: bool = False
    audits: bool = False

    def __post_init__(self) -> None:
        _check(is_digest(self.run), "the run's name must be a digest")
        _check(len(self.founders) > 0, "a run needs a founder")
        _check(len(set(self.founders)) == len(self.founders), "each founder must be named once")
        for name in _POSITIVE:
            _check(getattr(self, name) > 0, f"{name} must be above 0")
        for name in ("grace_s", "patience_s"):
            _check(getattr(self, name) >= 0, f"{name} must not be negative")
        policies, losses = get_args(QuorumPolicy), get_args(QuorumLoss)
        _check(self.quorum in policies, "the quorum must be a majority or two thirds")
        _check(self.quorum_loss in losses, 'quorum_loss must be "wait" or "branch"')
        _check(self.claims or not self.audits, "audits need claims")

    @property
    def branches(self) -> bool:
        return self.quorum_loss == "branch"

    def data_block(self, block: int) -> int:
        """Return the index of the data block that has block id `block` (see `leases`)."""
        return block % self.blocks


_POSITIVE = (
    "outer_steps",
    "blocks",
    "blocks_per_lease",
    "tokens_per_block",
    "participants_min",
    "attempts_max",
    "round_timeout_s",
    "branch_after_s",
    "reduce_s",
    "absent_s",
)


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)

"""The loss of θ (the run's agreed parameters), measured by all members together.

The blocks of held-out data are divided among the participants of the last commit, which the ledger
names. Shares do not overlap, and cover all blocks. Each member measures the loss of the new θ on
its share and reports the sum. Each node computes the mean loss per token from the reports so far,
and states how many blocks the mean covers. The share of a departed member is not reassigned: a
stated gap in a loss curve is acceptable, but blocks that two members measure would count twice.

A report is an unproven claim of its sender. A node accepts one report for each member and step,
only about that member's own share. The influence of a report on the mean is limited by the number
of tokens in the share. The ledger does not depend on the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from p2ptrain.errors import counted
from p2ptrain.ids import PeerId
from p2ptrain.peers.heartbeat import SHARE_BLOCKS_MAX, ValidationReport

STEPS_KEPT = 4
"""Number of measured steps for which late reports are still accepted."""

WAIT_S = 60.0
"""Seconds after which a mean is published even if reports of live members are missing."""


@dataclass(frozen=True, slots=True)
class ValidationShare:
    """The held-out blocks from `first` up to but not including `stop`."""

    first: int
    stop: int

    def __str__(self) -> str:
        return f"blocks {self.first} to {self.stop - 1}"


def divide_blocks(blocks: int, peers: Sequence[PeerId], step: int) -> dict[PeerId, ValidationShare]:
    """Divide `blocks` held-out blocks among `peers`, for the θ of outer step `step`.

    Sizes differ by at most one. The order of the peers is rotated with the step. So if there are
    fewer blocks than peers, other peers have no share in the next step; and if a peer is silent,
    other blocks stay unmeasured. Blocks of a share beyond SHARE_BLOCKS_MAX are left out.
    """
    ordered = sorted(set(peers))
    turn = step % max(1, len(ordered))
    ordered = ordered[turn:] + ordered[:turn]
    cuts = [blocks * index // len(ordered) for index in range(len(ordered) + 1)] if ordered else []
    shares = [ValidationShare(a, min(b, a + SHARE_BLOCKS_MAX)) for a, b in pairwise(cuts)]
    return {
        peer: share for peer, share in zip(ordered, shares, strict=True) if share.first < share.stop
    }


@dataclass(frozen=True, slots=True)
class Validation:
    """The result for the θ of outer step `step`. `loss` is the mean in nats per token, or None
    without reports. The reports cover `covered` of the `blocks` held-out blocks, with `tokens`
    tokens."""

    step: int
    loss: float | None
    tokens: int
    covered: int
    blocks: int
    missing: tuple[PeerId, ...]
    """Peers that have a share but have not reported."""

    def __str__(self) -> str:
        blocks = counted(self.blocks, "held-out block")
        if self.loss is None:
            return f"none of {blocks}"
        how_many = (
            f"{self.covered} of " if self.covered < self.blocks else "all " * (self.blocks > 1)
        )
        return f"{self.loss:.3f} over {how_many}{blocks}"


@dataclass(slots=True)
class _Step:
    shares: Mapping[PeerId, ValidationShare]
    begun_s: float
    reports: dict[PeerId, ValidationReport] = field(default_factory=dict)
    told: Validation | None = None


class ValidationTally:
    """The reports about the newest measured steps of a run with `blocks` held-out blocks."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self._blocks = blocks
        self._block_tokens = block_tokens
        self._steps: dict[int, _Step] = {}
        self.own: ValidationReport | None = None
        """This node's last report, for its heartbeats."""

    def begin(self, step: int, shares: Mapping[PeerId, ValidationShare], now: float) -> bool:
        """Accept reports about the θ of `step` from now on. Return False if they were already
        accepted."""
        if step in self._steps:
            return False
        self._steps[step] = _Step(shares, now)
        for old in sorted(self._steps)[:-STEPS_KEPT]:
            del self._steps[old]
        return True

    def note_report(self, peer: PeerId, report: ValidationReport) -> str:
        """Store a report of `peer`. Return the reason why the report is refused, or "". A repeated
        report, or a report about a step that is not kept, is ignored; the reason is "" then."""
        step = self._steps.get(report.step)
        if step is None:
            return ""
        share = step.shares.get(peer)
        if share is None:
            return f"it has no share of the held-out blocks of outer step {report.step}"
        if (report.first, report.stop) != (share.first, share.stop):
            return f"it measured {ValidationShare(report.first, report.stop)}; its share is {share}"
        tokens = (share.stop - share.first) * self._block_tokens
        if report.tokens != tokens:
            return f"it counted {counted(report.tokens, 'token')}; its share has {tokens}"
        if step.reports.setdefault(peer, report) != report:
            return f"it already reported a different result for outer step {report.step}"
        return ""

    def validation(self, step: int) -> Validation:
        """Return the result so far for the θ of `step`, one of the last STEPS_KEPT steps."""
        kept = self._steps[step]
        reports = kept.reports.values()
        tokens = sum(report.tokens for report in reports)
        # fsum does not depend on the order, so nodes with the same reports have the same mean.
        loss = math.fsum(report.loss_sum for report in reports) / tokens if reports else None
        covered = sum(report.stop - report.first for report in reports)
        missing = tuple(sorted(kept.shares.keys() - kept.reports.keys()))
        return Validation(step, loss, tokens, covered, self._blocks, missing)

    @property
    def newest(self) -> Validation | None:
        """The result for the newest step that has a report; None if there is none."""
        told = (self.validation(step) for step in sorted(self._steps, reverse=True))
        return next((each for each in told if each.loss is not None), None)

    def settled(self, now: float, gone: Callable[[PeerId], bool]) -> list[Validation]:
        """Return the results to publish now. A result waits for missing reports of peers that are
        not `gone`, until a later step is measured or WAIT_S have passed. If a report arrives after
        that, the updated result is returned as well."""
        news = []
        for step, kept in sorted(self._steps.items()):
            found = self.validation(step)
            waits = step == max(self._steps) and now < kept.begun_s + WAIT_S
            if found == kept.told or (waits and not all(map(gone, found.missing))):
                continue
            kept.told = found
            news.append(found)
        return news

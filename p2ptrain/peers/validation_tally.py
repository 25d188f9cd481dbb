"""The loss of θ, measured by all members together: who measures what, and what it adds up to.

The held-out blocks are divided among those whose work the last commit took, which everybody reads
off the ledger: shares are disjoint, and cover all blocks. Each member measures its share of the new
θ and tells the sum. Everybody forms the mean, by tokens, of what has come, and says of how many
blocks. Nobody takes up the share of one that is gone: a curve bears a hole that is told, and two
that both take it up would be counted twice.

A report is its sender's word. It is taken once for a member and a step, about that member's own
share and no other, and what it can do to the mean is bounded by its share of the tokens. Nothing
that is agreed depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from p2ptrain.ids import PeerId
from p2ptrain.peers.heartbeat import SHARE_BLOCKS_MAX, ValidationReport

STEPS_KEPT = 4
"""Measured steps whose late reports are still taken."""

WAIT_S = 60.0
"""Then a mean is told with the holes that it has, though some of those who owe a report live."""


@dataclass(frozen=True, slots=True)
class Share:
    """Held-out blocks from `first` to before `stop`."""

    first: int
    stop: int

    def __str__(self) -> str:
        return f"blocks {self.first} to {self.stop - 1}"


def divided(blocks: int, peers: Sequence[PeerId], step: int) -> dict[PeerId, Share]:
    """Who measures which of `blocks` held-out blocks of θ of outer step `step`.

    Sizes differ by one at most. Who comes first changes with the step: where there are fewer blocks
    than peers, it is not always the same who have none, and who never reports leaves its hole in
    another place each time. What is more than SHARE_BLOCKS_MAX is left out.
    """
    ordered = sorted(set(peers))
    turn = step % max(1, len(ordered))
    ordered = ordered[turn:] + ordered[:turn]
    cuts = [blocks * index // len(ordered) for index in range(len(ordered) + 1)] if ordered else []
    shares = [Share(a, min(b, a + SHARE_BLOCKS_MAX)) for a, b in pairwise(cuts)]
    return {
        peer: share for peer, share in zip(ordered, shares, strict=True) if share.first < share.stop
    }


@dataclass(frozen=True, slots=True)
class Validation:
    """What the reports about θ of outer step `step` add up to. `loss` is None where none came."""

    step: int
    loss: float | None
    tokens: int
    covered: int
    blocks: int
    missing: tuple[PeerId, ...]
    """Who has a share and has not reported."""

    def __str__(self) -> str:
        if self.loss is None:
            return f"none of {self.blocks} held-out blocks"
        how_many = f"{self.covered} of" if self.covered < self.blocks else "all"
        return f"{self.loss:.3f} over {how_many} {self.blocks} held-out blocks"


@dataclass(slots=True)
class _Step:
    shares: Mapping[PeerId, Share]
    begun_s: float
    reports: dict[PeerId, ValidationReport] = field(default_factory=dict)
    told: Validation | None = None


class Tally:
    """The reports about the newest measured steps of a run with `blocks` held-out blocks."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self._blocks = blocks
        self._block_tokens = block_tokens
        self._steps: dict[int, _Step] = {}
        self.own: ValidationReport | None = None
        """What this node has measured last, for its heartbeats."""

    def begin(self, step: int, shares: Mapping[PeerId, Share], now: float) -> bool:
        """Take reports about θ of `step` from now on. False if that is so already."""
        if step in self._steps:
            return False
        self._steps[step] = _Step(shares, now)
        for old in sorted(self._steps)[:-STEPS_KEPT]:
            del self._steps[old]
        return True

    def hear(self, peer: PeerId, report: ValidationReport) -> str:
        """Take a report. Returns why it is refused; one that is repeated, or about a step that is
        not kept, is no offence.
        """
        step = self._steps.get(report.step)
        if step is None:
            return ""
        share = step.shares.get(peer)
        if share is None:
            return f"it has no share of the held-out blocks of outer step {report.step}"
        if (report.first, report.stop) != (share.first, share.stop):
            return f"it measured {Share(report.first, report.stop)}; its share is {share}"
        tokens = (share.stop - share.first) * self._block_tokens
        if report.tokens != tokens:
            return f"it counted {report.tokens} tokens where there are {tokens}"
        if step.reports.setdefault(peer, report) != report:
            return f"it has said something else of outer step {report.step} before"
        return ""

    def validation(self, step: int) -> Validation:
        """What has come about θ of `step`, which must be kept."""
        kept = self._steps[step]
        reports = kept.reports.values()
        tokens = sum(report.tokens for report in reports)
        # fsum is the same whatever came first, so whoever has the same reports has the same mean.
        loss = math.fsum(report.loss_sum for report in reports) / tokens if reports else None
        covered = sum(report.stop - report.first for report in reports)
        missing = tuple(sorted(kept.shares.keys() - kept.reports.keys()))
        return Validation(step, loss, tokens, covered, self._blocks, missing)

    @property
    def newest(self) -> Validation | None:
        """Of the newest step about which anything came."""
        told = (self.validation(step) for step in sorted(self._steps, reverse=True))
        return next((each for each in told if each.loss is not None), None)

    def settled(self, now: float, gone: Callable[[PeerId], bool]) -> list[Validation]:
        """What can be told now and was not told yet: nobody is waited for any more who is `gone`,
        or whose step is followed by another measured one, or is over for long. What comes late all
        the same is told again.
        """
        news = []
        for step, kept in sorted(self._steps.items()):
            found = self.validation(step)
            waits = step == max(self._steps) and now < kept.begun_s + WAIT_S
            if found == kept.told or (waits and not all(map(gone, found.missing))):
                continue
            kept.told = found
            news.append(found)
        return news

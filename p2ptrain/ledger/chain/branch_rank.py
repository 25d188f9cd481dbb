"""Which of two chains of one run is to be followed, where they parted: a pure comparison of states.

A *line* is a chain as one body of voters decides it: the run itself at first, a branch of it after
each Branch entry. A chain is a sequence of stretches, one on each line that it went along. Compared
stretch by stretch, from genesis on:

- the same line: who went further on it wins, since those entries have a quorum that those who
  branched off did not have;
- two branches of one entry: more tokens committed on the stretch win, then the lower digest;
- nothing left to compare: the longer chain merely continues the shorter.

What is compared is a property of each chain alone, so the order is total, and no three chains can
each outrank the next. (Comparing the tokens at the very end of each chain would allow that: a
branch of a branch may have more than the line that it left.) Every entry raises its chain's rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import LineId

STRETCHES_MAX = 1024
"""Branches of branches: each costs its voters branch_after_s, and a chain with more is refused."""

Rank = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a chain made of one line before it left it: up to `height`, in outer step `step`, with
    `tokens` committed in all. `gone` are the voters that the branch goes on without.
    """

    line: LineId
    height: int
    step: int
    tokens: int
    gone: tuple[PeerId, ...]

    def plain(self) -> list[object]:
        return [self.line, self.height, self.step, self.tokens, list(self.gone)]


def rank(past: Iterable[Stretch], line: LineId, height: int, tokens: int) -> Rank:
    """Of a chain that is on `line` after the stretches of `past`. Greater is to be followed."""
    ends = [(each.tokens, each.line, each.height) for each in past]
    return tuple((won, -int(name, 16), at) for won, name, at in [*ends, (tokens, line, height)])

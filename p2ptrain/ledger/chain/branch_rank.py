"""Decide which of two chains of one run to follow after they parted: a pure comparison of states.

A *line* is the part of a chain that one electorate decides. The first line is the run itself; each
Branch entry begins another. A chain is a sequence of stretches, one for each line that it went
along. Two chains are compared stretch by stretch from genesis on:

- on the same line the longer stretch wins, since its entries have a quorum that those who branched
  off did not have;
- of two branches of one entry, the one with more tokens committed on its stretch wins, then the one
  with the lower digest;
- if nothing is left to compare, the longer chain merely continues the shorter.

The comparison uses properties of each chain alone, so the order is total, and no three chains can
each outrank the next. (Comparing the tokens at the very end of each chain would allow that: a
branch of a branch may have more than the line that it left.) Every entry raises its chain's rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import LineId

STRETCHES_MAX = 1024
"""Most branches that one chain may go through. Each costs its voters branch_after_s, so honest
chains stay far below; a chain with more is refused.
"""

Rank = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of a chain on one line, up to where the chain left that line. `height` and `step`
    are the last ones there, `tokens` is the total committed by then. `gone` are the voters that the
    branch goes on without.
    """

    line: LineId
    height: int
    step: int
    tokens: int
    gone: tuple[PeerId, ...]

    def plain(self) -> list[object]:
        return [self.line, self.height, self.step, self.tokens, list(self.gone)]


def rank(past: Iterable[Stretch], line: LineId, height: int, tokens: int) -> Rank:
    """Return the rank of a chain that is on `line` after the stretches of `past`. Of two chains,
    follow the one with the greater rank.
    """
    ends = [(each.tokens, each.line, each.height) for each in past]
    return tuple((won, -int(name, 16), at) for won, name, at in [*ends, (tokens, line, height)])

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

from p2ptrain.ledger.chain.state import LedgerState

Rank = tuple[tuple[int, int, int], ...]


def rank_of(state: LedgerState) -> Rank:
    """Return the rank of the chain that leads to `state`. Of two chains, follow the one with the
    greater rank.
    """
    ends = [(each.tokens, each.line, each.height) for each in state.past]
    ends.append((state.tokens, state.line, state.height))
    return tuple((won, -int(name, 16), at) for won, name, at in ends)

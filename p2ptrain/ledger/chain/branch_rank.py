"""Decide which of two chains of one run to follow after they diverged: a pure comparison of states.

A *line* is the run itself, or what follows one Branch entry (a continuation without the lost
quorum). The part of a chain that is on one line is a *stretch*. Two chains are compared stretch by
stretch, starting at genesis:

- on the same line, the longer stretch wins, since its entries have a quorum, which the peers that
  branched off did not have;
- of two branches of one entry, the one with more tokens committed by the end of its stretch wins;
  in case of a tie, the one with the lower digest wins;
- if one chain contains the other, it wins, because it is longer on the last common line or goes on
  to a further line.

The rank depends on one chain alone, so the order is total, and three chains cannot outrank each
other in a cycle. (Comparing the tokens at the end of each chain would allow cycles: a branch of a
branch may have more tokens than the line that it left.) Every entry raises its chain's rank.
"""

from __future__ import annotations

from p2ptrain.ledger.chain.state import LedgerState

Rank = tuple[tuple[int, int, int], ...]


def rank_of(state: LedgerState) -> Rank:
    """Return the rank of the chain that leads to `state`. The greater rank wins."""
    ends = [(each.tokens, each.line, each.height) for each in state.past]
    ends.append((state.tokens, state.line, state.height))
    return tuple((won, -int(name, 16), at) for won, name, at in ends)

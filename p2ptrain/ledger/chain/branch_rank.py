"""Decide which of two chains of one run to follow after they diverged: a pure comparison of states.

A *line* is the run itself, or what follows one Branch entry (a continuation without the lost
quorum). The part of a chain that is on one line is a *stretch*. Two chains are compared stretch by
stretch, starting at genesis:

- on the same line, the longer stretch wins, since its entries have a quorum, which the peers that
  branched off did not have;
- of two branches of one entry, the one that more voters signed wins; in case of a tie, the one with
  more tokens committed by the end of its stretch; then the one with the lower digest;
- if one chain contains the other, it wins, because it is longer on the last common line or goes on
  to a further line.

The rank depends on one chain alone, so the order is total, and three chains cannot outrank each
other in a cycle. (Comparing the tokens at the end of each chain would allow cycles: a branch of a
branch may have more tokens than the line that it left.) Every entry raises its chain's rank.

Voters come before tokens, because tokens can be invented: a voter that lies can sign a branch of
its own and commit there whatever it likes, but it cannot sign for others.
"""

from __future__ import annotations

from p2ptrain.ledger.chain.state import LedgerState

Rank = tuple[tuple[int, int, int, int], ...]


def rank_of(state: LedgerState) -> Rank:
    """Return the rank of the chain that leads to `state`. The greater rank wins.

    Branches of one entry choose from the same voters. So more voters means that fewer were left
    out, which is what the state records.
    """
    left_out = (0, *(len(each.gone) for each in state.past))
    ends = [(each.tokens, each.line, each.height) for each in state.past]
    ends.append((state.tokens, state.line, state.height))
    return tuple(
        (-gone, tokens, -int(line, 16), height)
        for gone, (tokens, line, height) in zip(left_out, ends, strict=True)
    )

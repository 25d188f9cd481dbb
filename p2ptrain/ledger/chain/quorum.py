"""Decide whether a set of voters is a quorum, and which voter proposes next.

Any two quorums of the same voters share a voter; all of SPEC.md depends on that. Exactly half of
the voters is a quorum if it contains the first-ranked voter (dynamic linear voting). So if a
network failure cuts the voters into two halves, exactly one half continues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.rules import QuorumPolicy


def proposer(voters: Sequence[PeerId], height: int, round: int) -> PeerId:
    """Return the voter that proposes in `round` of `height`."""
    return voters[(height + round) % len(voters)]


def reached(policy: QuorumPolicy, voters: Sequence[PeerId], present: Collection[PeerId]) -> bool:
    """Return whether those of the ranked `voters` that are in `present` are a quorum."""
    count = sum(1 for voter in voters if voter in present)
    return is_enough(policy, len(voters), count, first_present=voters[0] in present)


def is_enough(policy: QuorumPolicy, voters: int, present: int, *, first_present: bool) -> bool:
    """Return whether `present` of `voters` voters, with or without the first, are a quorum."""
    if policy == "two-thirds":
        return 3 * present > 2 * voters
    return 2 * present > voters or (2 * present == voters and first_present)


def missing(
    policy: QuorumPolicy, voters: Sequence[PeerId], present: Collection[PeerId]
) -> tuple[PeerId, ...]:
    """Return the absent voters if the voters in `present` are not a quorum, else ()."""
    if reached(policy, voters, present):
        return ()
    return tuple(voter for voter in voters if voter not in present)

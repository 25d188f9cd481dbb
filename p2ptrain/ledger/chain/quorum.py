"""Decide whether a set of voters is a quorum, and which voter proposes next.

Any two sets for which `reached` is true share a voter; all of SPEC.md depends on that. An exact
half counts if it contains the first-ranked voter (dynamic linear voting). Two such halves share
that voter, so if an even group is cut in two, only one side continues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.rules import QuorumPolicy


def proposer(voters: Sequence[PeerId], height: int, round: int) -> PeerId:
    """Return the voter that proposes in `round` of `height`."""
    return voters[(height + round) % len(voters)]


def reached(policy: QuorumPolicy, voters: Sequence[PeerId], present: Collection[PeerId]) -> bool:
    """Return whether the voters in `present` form a quorum of the ranked `voters`. Other peers in
    `present` do not count.
    """
    count = sum(1 for voter in voters if voter in present)
    return is_enough(policy, len(voters), count, first_present=voters[0] in present)


def is_enough(policy: QuorumPolicy, voters: int, present: int, *, first_present: bool) -> bool:
    """Return whether `present` out of `voters` voters form a quorum. `first_present`: whether the
    first-ranked voter is among them.
    """
    if policy == "two-thirds":
        return 3 * present > 2 * voters
    return 2 * present > voters or (2 * present == voters and first_present)


def missing(
    policy: QuorumPolicy, voters: Sequence[PeerId], present: Collection[PeerId]
) -> tuple[PeerId, ...]:
    """Return the absent voters if no quorum is reached, else (). Used in messages to users."""
    if reached(policy, voters, present):
        return ()
    return tuple(voter for voter in voters if voter not in present)

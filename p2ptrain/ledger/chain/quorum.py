"""Decide whether some voters are enough to speak for all, and which voter proposes next.

Any two sets for which `reached` is true share a voter; everything in SPEC.md rests on that. An
exact half counts if it contains the first-ranked voter (dynamic linear voting). Two such halves
share that voter, so an even group cut in two goes on at one side only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.rules import QuorumPolicy


def proposer(voters: Sequence[PeerId], height: int, round: int) -> PeerId:
    """Return the voter that proposes in `round` of `height`."""
    return voters[(height + round) % len(voters)]


def reached(policy: QuorumPolicy, voters: Sequence[PeerId], present: Collection[PeerId]) -> bool:
    """Return whether those of the ranked `voters` that are in `present` make a quorum. Peers in
    `present` that are not voters do not count.
    """
    count = sum(1 for voter in voters if voter in present)
    return is_enough(policy, len(voters), count, first_present=voters[0] in present)


def is_enough(policy: QuorumPolicy, voters: int, present: int, *, first_present: bool) -> bool:
    """Return whether `present` of `voters` make a quorum. `first_present`: whether the first-ranked
    voter is among them.
    """
    if policy == "two-thirds":
        return 3 * present > 2 * voters
    return 2 * present > voters or (2 * present == voters and first_present)


def missing(
    policy: QuorumPolicy, voters: Sequence[PeerId], present: Collection[PeerId]
) -> tuple[PeerId, ...]:
    """Return the absent voters if no quorum is reached, else nobody. Used in messages to people."""
    if reached(policy, voters, present):
        return ()
    return tuple(voter for voter in voters if voter not in present)

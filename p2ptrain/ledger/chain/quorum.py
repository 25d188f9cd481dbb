"""When the voices of some voters are enough to speak for all, and whose turn it is to propose.

Any two sets for which `reached` is true share a voter; everything in SPEC.md rests on that. An
exact half counts if the first-ranked voter is in it (dynamic linear voting): two such halves share
that voter, so an even group cut in two goes on at one side, and only at one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.rules import QuorumPolicy


def proposer(voters: Sequence[PeerId], height: int, round: int) -> PeerId:
    """Whose turn it is in `round` of `height`."""
    return voters[(height + round) % len(voters)]


def reached(policy: QuorumPolicy, voters: Sequence[PeerId], present: Collection[PeerId]) -> bool:
    """Whether those `voters` (ranked) who are `present` make a quorum. Others do not count."""
    count = sum(1 for voter in voters if voter in present)
    return is_enough(policy, len(voters), count, first_present=voters[0] in present)


def is_enough(policy: QuorumPolicy, voters: int, present: int, *, first_present: bool) -> bool:
    """Whether `present` of `voters` make a quorum, the first-ranked among them or not."""
    if policy == "two-thirds":
        return 3 * present > 2 * voters
    return 2 * present > voters or (2 * present == voters and first_present)


def missing(
    policy: QuorumPolicy, voters: Sequence[PeerId], present: Collection[PeerId]
) -> tuple[PeerId, ...]:
    """The voters that are not present, if a quorum is not reached; else nobody. For words to
    people.
    """
    if reached(policy, voters, present):
        return ()
    return tuple(voter for voter in voters if voter not in present)

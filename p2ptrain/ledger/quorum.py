"""When the voices of some voters are enough to speak for all.

Any two sets for which `reached` is true share a voter; everything in SPEC.md rests on that. An
exact half counts if the first-ranked voter is in it (dynamic linear voting): two such halves share
that voter, so an even group cut in two goes on at one side, and only at one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from p2ptrain.ids import PeerId
from p2ptrain.ledger.rules import QuorumPolicy


def reached(
    policy: QuorumPolicy,
    voters: Sequence[PeerId],
    present: AbstractSet[PeerId] | Collection[PeerId],
) -> bool:
    """Whether those `voters` (ranked) who are `present` make a quorum. Others do not count."""
    count = sum(1 for voter in voters if voter in present)
    if policy == "two-thirds":
        return 3 * count > 2 * len(voters)
    return 2 * count > len(voters) or (2 * count == len(voters) and voters[0] in present)


def missing(
    policy: QuorumPolicy, voters: Sequence[PeerId], present: AbstractSet[PeerId]
) -> tuple[PeerId, ...]:
    """The voters that are not present, if a quorum is not reached; else nobody. For words to
    people.
    """
    if reached(policy, voters, present):
        return ()
    return tuple(voter for voter in voters if voter not in present)

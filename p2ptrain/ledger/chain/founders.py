"""Rules of runs in which only the manifest's founders vote: SPEC.md, "Open runs".

In an open run, anybody may take part, under as many identities as they like. Such identities must
not have a vote. The signed manifest names the founders, so nobody can add one.

This module contains the rules that follow from the chain alone. The rules that depend on reports
are in `policy/membership.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.rules import QuorumPolicy, Rules
from p2ptrain.ledger.chain.values import MEMBERS_MAX, Roster


@dataclass(frozen=True, slots=True)
class Founders:
    """The founders of an open run.

    `voters_min` is the number of voters that must remain when one leaves, so that the run survives
    the loss of any one of them. It is 1 in a run that has too few founders for that.
    """

    names: frozenset[PeerId]
    voters_min: int

    @property
    def learners_max(self) -> int:
        """Maximum number of learners in a roster. A place is reserved for every founder, so that
        other peers cannot take all places while a founder is away.
        """
        return MEMBERS_MAX - len(self.names)


def founders_of(rules: Rules) -> Founders | None:
    """Return the founders, or None if the run lets other peers vote too."""
    if not rules.founders_vote:
        return None
    least = survives_a_loss(rules.quorum)
    return Founders(frozenset(rules.founders), least if len(rules.founders) >= least else 1)


def survives_a_loss(policy: QuorumPolicy) -> int:
    """Return the smallest number of voters that can lose any one voter and keep a quorum. It is 3
    with a majority, and 4 with two thirds.
    """
    voters = 1
    while not quorum.is_enough(policy, voters, voters - 1, first_present=False):
        voters += 1
    return voters


def roster_fault(founders: Founders, roster: Roster) -> str:
    """Return the reason why `roster` breaks SPEC.md F1; empty if it does not."""
    for voter in roster.voters:
        if voter not in founders.names:
            return f"{voter} cannot be a voter: it is not a founder of this open run"
    for learner in roster.learners:
        if learner in founders.names:
            return f"{learner} is a founder and cannot be a learner"
    if len(roster.learners) > founders.learners_max:
        return f"it has {len(roster.learners)} learners; the maximum is {founders.learners_max}"
    return ""

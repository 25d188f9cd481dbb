"""Rules of runs in which only the manifest's founders, and the peers to which the organiser
delegates a vote, are voters: SPEC.md, "Open runs".

In an open run, anybody may take part, under as many identities as they like. Such identities must
not have a vote. The signed manifest names the founders, and signed amendments name the delegates,
so nobody else can add one.

This module contains the rules that follow from the chain alone. The rules that depend on reports
are in `policy/membership.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.rules import QuorumPolicy, Rules
from p2ptrain.ledger.chain.values import MEMBERS_MAX, Roster, Terms

if TYPE_CHECKING:
    from p2ptrain.ledger.chain.state import LedgerState


@dataclass(frozen=True, slots=True)
class Founders:
    """The peers that may vote in the current outer step of an open run.

    - `names`: the founders.
    - `quorum`: which voters are a quorum.
    - `absent_s`: seconds after which a voter that is down may lose its vote.
    - `delegates`: the peers with a delegated vote.
    - `voters_min`: the number of voters that must remain when one leaves, so that the run survives
      the loss of any one of them. It is 1 in a run that has too few founders and voters for that.
    """

    names: frozenset[PeerId]
    quorum: QuorumPolicy
    absent_s: float
    delegates: frozenset[PeerId]
    voters_min: int

    @property
    def learners_max(self) -> int:
        """Maximum number of learners and delegated voters in a roster. A place is reserved for
        every founder, so that other peers cannot take all places while a founder is away.
        """
        return MEMBERS_MAX - len(self.names)

    @property
    def replacing_min(self) -> int:
        """Minimum number of voters of a roster that drops a voter because it is down for long."""
        return survives_a_loss(self.quorum)

    def may_vote(self, peer: PeerId) -> bool:
        return peer in self.names or peer in self.delegates

    def lingering(self, voters: Iterable[PeerId]) -> int:
        """Return how many revoked delegates may stay voters. `voters` are the voters before and
        after a roster. Otherwise a revocation could leave the run without any voter.
        """
        entitled = sum(map(self.may_vote, set(voters)))
        return max(0, min(len(self.names), self.replacing_min) - entitled)


def founders_of(rules: Rules, state: LedgerState) -> Founders | None:
    """Return the peers that may vote after `state`; None if the run lets any proven peer vote."""
    if not rules.founders_vote:
        return None
    least = survives_a_loss(rules.quorum)
    count = max(len(rules.founders), len(state.voters))
    return Founders(
        frozenset(rules.founders),
        rules.quorum,
        rules.absent_s,
        delegates(state.terms, state.step),
        least if count >= least else 1,
    )


def delegates(agreed: tuple[Terms, ...], step: int) -> frozenset[PeerId]:
    """Return the peers with a delegated vote in outer step `step`: those of the newest list."""
    lists = [each.voters for each in agreed if each.step <= step and each.voters is not None]
    return frozenset(lists[-1]) if lists else frozenset()


def survives_a_loss(policy: QuorumPolicy) -> int:
    """Return the smallest number of voters that can lose any one voter and keep a quorum. It is 3
    with a majority, and 4 with two thirds.
    """
    voters = 1
    while not quorum.is_enough(policy, voters, voters - 1, first_present=False):
        voters += 1
    return voters


def roster_fault(founders: Founders, state: LedgerState, roster: Roster) -> str:
    """Return the reason why `roster` breaks SPEC.md F1 or F6; empty if it does not."""
    fault = _newcomer_fault(founders, state, roster) or _revoked_fault(founders, state, roster)
    if fault:
        return fault
    for learner in roster.learners:
        if learner in founders.names:
            return f"{learner} is a founder and cannot be a learner"
        if learner in founders.delegates and learner in state.voters:
            return f"{learner} is a voter and cannot become a learner"
    places = len(roster.learners) + sum(voter not in founders.names for voter in roster.voters)
    if places > founders.learners_max:
        return f"it has {places} learners and delegates; the maximum is {founders.learners_max}"
    return ""


def _newcomer_fault(founders: Founders, state: LedgerState, roster: Roster) -> str:
    for voter in roster.voters:
        if voter in founders.names or voter in state.voters:
            continue
        if voter not in founders.delegates:
            return f"{voter} cannot be a voter: it is not a founder of this open run or a delegate"
        if voter not in state.proven:
            return f"{voter} cannot become a voter before it takes part in a committed update"
    return ""


def _revoked_fault(founders: Founders, state: LedgerState, roster: Roster) -> str:
    revoked = [voter for voter in roster.voters if not founders.may_vote(voter)]
    if len(revoked) > founders.lingering((*state.voters, *roster.voters)):
        return f"{revoked[0]} cannot stay a voter: its delegated vote was revoked"
    return ""

"""Defects in the rules of open runs about voters: who votes, who loses a vote and regains it."""

from __future__ import annotations

from dataclasses import replace

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import apply as apply_module
from p2ptrain.ledger.chain import founders
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.ledger.policy import accept, membership
from p2ptrain.ledger.policy.reports import View
from tests.simulation.defects.planting import Patch


def strangers_may_vote(patch: Patch) -> None:
    """Voters need not be founders: a roster may name any voters."""

    def unasked(at: LedgerState, view: View, roster: Roster) -> str:
        names = () if view.founders is None else view.founders.names
        voters = tuple(voter for voter in roster.voters if voter in names)
        return original(
            at, view, replace(roster, voters=voters, learners=(), participants=(), schedule="ring")
        )

    original = membership.unasked
    patch(accept, "unasked", unasked)
    patch(apply_module, "roster_fault", lambda of, roster: "")


def down_is_gone(patch: Patch) -> None:
    """A founder that is down loses its vote, as a voter of any other run does."""
    patch(membership, "has_left", lambda of, view, voter: voter in view.down)


def goodbyes_sent_again_count(patch: Patch) -> None:
    """A goodbye counts even if its founder is up again."""
    patch(membership, "has_left", lambda of, view, voter: voter in view.leaving)


def founders_dropped_at_will(patch: Patch) -> None:
    """A proposer may drop a founder without a reason."""
    patch(accept, "dropped_for_nothing", lambda of, at, view, roster: "")


def goodbyes_below_three(patch: Patch) -> None:
    """Every goodbye removes a voter, even if too few voters remain."""
    patch(founders, "survives_a_loss", lambda policy: 1)


def returned_founders_do_not_vote(patch: Patch) -> None:
    """A founder that comes back becomes neither a learner nor a voter."""

    def asking(at: LedgerState, view: View) -> list[PeerId]:
        names = () if view.founders is None else view.founders.names
        return [peer for peer in original(at, view) if peer not in names]

    original = membership._asking
    patch(membership, "_asking", asking)

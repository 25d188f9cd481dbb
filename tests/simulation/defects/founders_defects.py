"""Defects in the rules about voters in open runs: which peers vote, lose their vote, and regain
it.
"""

from __future__ import annotations

from dataclasses import replace

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import apply as apply_module
from p2ptrain.ledger.chain import founders
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.ledger.policy import accept, membership
from p2ptrain.ledger.policy.reports import Reports
from tests.simulation.defects.planting import Patch


def strangers_may_vote(patch: Patch) -> None:
    """Voters need not be founders: a roster can name any peers as voters."""

    def unasked(at: LedgerState, reports: Reports, roster: Roster) -> str:
        names = () if reports.founders is None else reports.founders.names
        voters = tuple(voter for voter in roster.voters if voter in names)
        return original(
            at,
            reports,
            replace(roster, voters=voters, learners=(), participants=(), schedule="ring"),
        )

    original = membership.unasked
    patch(accept, "unasked", unasked)
    patch(apply_module, "roster_fault", lambda of, at, roster: "")


def down_is_gone(patch: Patch) -> None:
    """A founder that is down loses its vote, as a voter does in a run that is not open."""
    patch(membership, "has_left", lambda of, reports, voter: voter in reports.down)


def goodbyes_sent_again_count(patch: Patch) -> None:
    """A founder's goodbye counts even if the founder is up again."""
    patch(membership, "has_left", lambda of, reports, voter: voter in reports.leaving)


def founders_dropped_at_will(patch: Patch) -> None:
    """A proposer can drop a founder without a reason."""
    patch(accept, "dropped_for_nothing", lambda of, at, reports, roster, now: "")


def goodbyes_below_three(patch: Patch) -> None:
    """Every goodbye removes a voter, even if too few voters remain."""
    patch(founders, "survives_a_loss", lambda policy: 1)


def returned_founders_do_not_vote(patch: Patch) -> None:
    """A founder that returns becomes neither a learner nor a voter."""

    def asking(at: LedgerState, reports: Reports) -> list[PeerId]:
        names = () if reports.founders is None else reports.founders.names
        return [peer for peer in original(at, reports) if peer not in names]

    original = membership._asking
    patch(membership, "_asking", asking)

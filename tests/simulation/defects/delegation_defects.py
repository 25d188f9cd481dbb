"""Defects in the rules about delegated votes: who has one, and which voters are replaced."""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import founders
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Roster, Terms
from p2ptrain.ledger.policy import accept, membership, policy
from p2ptrain.ledger.policy.reports import Reports
from tests.simulation.defects.planting import Patch


def revoked_delegates_stay(patch: Patch) -> None:
    """A delegate whose vote was revoked stays a voter."""
    patch(founders.Founders, "lingering", lambda of, voters: len(voters))


def lists_take_effect_at_once(patch: Patch) -> None:
    """A list of delegates is in force as soon as it is agreed, not from its step on."""

    def delegates(agreed: tuple[Terms, ...], step: int) -> frozenset[PeerId]:
        return original(agreed, max((each.step for each in agreed), default=step))

    original = founders.delegates
    patch(founders, "delegates", delegates)


def unproven_delegates_vote(patch: Patch) -> None:
    """A delegate becomes a voter before it has taken part in a committed update."""

    def new_voters(of: founders.Founders, at: LedgerState, reports: Reports) -> list[PeerId]:
        named = [peer for peer in at.learners if peer in of.delegates]
        return list(dict.fromkeys((*original(of, at, reports), *named)))

    original = membership._new_voters
    patch(membership, "_new_voters", new_voters)
    patch(founders, "_newcomer_fault", lambda of, at, roster: "")


def delegates_promoted_at_will(patch: Patch) -> None:
    """So many delegates become voters at once that they can take the quorum with them."""
    for module in (membership, accept):
        patch(module, "is_safe", lambda of, reports, kept, added: True)


def absent_dropped_at_once(patch: Patch) -> None:
    """In a run with delegates, a voter that is down loses its vote at once."""
    patch(Reports, "down_at_least", lambda reports, seconds, now: set(reports.down))


def absent_never_dropped(patch: Patch) -> None:
    """A voter that is gone for good keeps its vote, also in a run with delegates."""
    patch(membership, "absent", lambda reports, now: frozenset())


def absence_below_three(patch: Patch) -> None:
    """Absent voters lose their votes even if too few voters remain."""
    patch(founders, "survives_a_loss", lambda policy: 1)


def run_is_stopped_by_a_revocation(patch: Patch) -> None:
    """Members agree on every list of delegates, even if it leaves no voter that is up."""

    def disarming(of: object, at: LedgerState, reports: Reports, terms: Terms) -> str:
        return ""

    patch(accept, "disarming", disarming)
    patch(policy, "disarming", disarming)


def volunteers_wait_for_founders(patch: Patch) -> None:
    """Peers are admitted only while a founder votes."""

    def asking(at: LedgerState, reports: Reports) -> list[PeerId]:
        names = frozenset[PeerId]() if reports.founders is None else reports.founders.names
        return original(at, reports) if names.intersection(at.voters) else []

    original = membership._asking
    patch(membership, "_asking", asking)


def absent_founders_return_unasked(patch: Patch) -> None:
    """A proposer makes dropped founders voters again, although they are down and did not ask."""

    def new_voters(of: founders.Founders, at: LedgerState, reports: Reports) -> list[PeerId]:
        away = sorted(of.names.difference(at.members))
        return list(dict.fromkeys((*original(of, at, reports), *away)))

    def unasked(at: LedgerState, reports: Reports, roster: Roster) -> str:
        return ""

    original = membership._new_voters
    patch(membership, "_new_voters", new_voters)
    patch(accept, "unasked", unasked)

"""Defects in the rules about claims: what binds a participant, and what proves that it lied."""

from __future__ import annotations

from p2ptrain.ledger.accountability import claim_log
from p2ptrain.ledger.chain import apply as apply_module
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.messages import claim_statement, evidence
from p2ptrain.ledger.messages.claim_statement import ClaimStatement
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.ledger.policy import accept, participants, reports
from p2ptrain.ledger.policy.reports import Reports
from tests.simulation.defects.planting import Patch


def claims_not_bound(patch: Patch) -> None:
    """A later attempt of an outer step may name another claim of a participant."""
    patch(apply_module, "claim_fault", lambda rules, at, peer, claim: "")
    patch(participants, "claim_fault", lambda rules, at, peer, claim: "")
    patch(participants, "_has_newer_claim", lambda at, reports, peer: False)


def claims_misquoted(patch: Patch) -> None:
    """A voter compares only the numbers of participants with their reports, not their claims."""

    def is_reported(at: LedgerState, reports: Reports, part: object) -> bool:
        ready = reports.ready.get(part.peer)  # type: ignore[attr-defined]
        said = ready is not None and (ready.step, ready.tokens, ready.blocks)
        return said == (at.step, part.tokens, part.blocks)  # type: ignore[attr-defined]

    patch(accept, "_is_reported", is_reported)


def claims_unsigned(patch: Patch) -> None:
    """The signature of a claim is not checked."""
    patch(claim_log.ClaimLog, "fault", lambda self, report: "")


def older_claims_count(patch: Patch) -> None:
    """A report replaces any earlier one for the same outer step."""

    def position(report: object) -> tuple[int, int]:
        if isinstance(report, Ready):
            return (report.step, 0)
        return original(report)  # type: ignore[arg-type]

    original = reports._position
    patch(reports, "_position", position)


def contradictions_ignored(patch: Patch) -> None:
    patch(claim_log.ClaimLog, "note", lambda self, peer, said, members: None)


def old_claims_repeated(patch: Patch) -> None:
    """Two statements about one claim never contradict each other."""

    def contradict(one: ClaimStatement, other: ClaimStatement) -> bool:
        return one.claim != other.claim and original(one, other)

    original = claim_statement.claims_contradict
    patch(claim_log, "claims_contradict", contradict)
    patch(evidence, "claims_contradict", contradict)


def claims_not_shown(patch: Patch) -> None:
    """A voter that doubts a roster keeps the claims to itself that the proposer does not know."""
    patch(accept, "_claims_to_show", lambda rules, at, reports, roster: ())

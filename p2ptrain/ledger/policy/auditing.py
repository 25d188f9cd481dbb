"""Propose verdicts and auditors, and doubt rosters that choose auditors without a cause: SPEC.md,
"Auditors and findings". The rules that follow from the chain alone are in `chain/audits.py`.
"""

from __future__ import annotations

from dataclasses import replace

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import approved_of
from p2ptrain.ledger.chain.audits import auditors_after, case_of
from p2ptrain.ledger.chain.findings import (
    AUDITORS_MAX,
    VERDICT_FINDINGS_MAX,
    Finding,
    Verdict,
)
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Roster, Value
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.wish import Wish


def verdict_due(state: LedgerState, reports: Reports) -> Wish | None:
    """Return a verdict for which this node knows enough findings; None if there is none."""
    chosen: dict[PeerId, list[Finding]] = {}
    for (peer, draw), said in reports.findings.by_case.items():
        case = case_of(state, peer, draw)
        if case is None or peer in chosen or len(said) < case.needed:
            continue
        enough = [said[auditor] for auditor in sorted(said)][: case.needed]
        if sum(map(len, chosen.values())) + len(enough) <= VERDICT_FINDINGS_MAX:
            chosen[peer] = enough
    if not chosen:
        return None
    findings = tuple(each for peer in sorted(chosen) for each in chosen[peer])
    ends = sum(1 for peer in chosen if peer in state.excluded)
    reason = f"auditors judged: {len(chosen) - ends} excluded from averages, {ends} no longer"
    return Wish(Verdict(state.step, findings), reason)


def unsigned_in(reports: Reports, verdict: Verdict) -> str:
    """Say which finding in `verdict` its auditor did not sign; empty if all are signed."""
    for finding in verdict.findings:
        if not reports.findings.is_genuine(finding):
            return f"{finding.auditor} did not sign the finding about {finding.peer}"
    return ""


def with_auditors(rules: Rules, state: LedgerState, reports: Reports, value: Value) -> Value:
    """Return the roster `value` with the auditors that offer capacity, if they are not those that
    audit anyway. Return any other value unchanged.
    """
    if not rules.audits or not isinstance(value, Roster):
        return value
    members, approved = (value.voters, value.learners), approved_of(rules, state)
    stay = auditors_after(state.auditors, *members, approved)
    kept = [peer for peer in stay if not _stops(reports, peer)]
    offering = (peer for peer in value.members if peer not in kept and _offers(reports, peer))
    new = auditors_after(tuple(offering), *members, approved)
    named = tuple(sorted((*kept, *new[: max(0, AUDITORS_MAX - len(kept))])))
    return value if named == stay else replace(value, auditors=named)


def handpicked(rules: Rules, state: LedgerState, reports: Reports, roster: Roster) -> str:
    """Say which auditor `roster` drops or adds without a cause, as far as this node knows (SPEC.md,
    A1); empty if none.
    """
    if roster.auditors is None:
        return ""
    members, approved = (roster.voters, roster.learners), approved_of(rules, state)
    for peer in auditors_after(state.auditors, *members, approved):
        if peer not in roster.auditors and _offers(reports, peer):
            return f"it drops the auditor {peer}, which offers capacity"
    for peer in roster.auditors:
        if peer not in state.auditors and not _offers(reports, peer):
            return f"it adds the auditor {peer}, which does not offer capacity"
    return ""


def _offers(reports: Reports, peer: PeerId) -> bool:
    return reports.offers.get(peer, 0) > 0 and peer not in reports.down


def _stops(reports: Reports, peer: PeerId) -> bool:
    """Return whether `peer`, an auditor, is down or has withdrawn its offer. After a restart, this
    node has not heard its offer yet, and keeps it.
    """
    return peer in reports.down or reports.offers.get(peer, 1) == 0

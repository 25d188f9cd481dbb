"""Defects in the rules about auditors: who is drawn, which findings count, and what they do."""

from __future__ import annotations

from dataclasses import replace

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain import apply as apply_module
from p2ptrain.ledger.chain import audits, verify
from p2ptrain.ledger.chain.audits import Case
from p2ptrain.ledger.chain.findings import FOUND, Audit, Finding
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.policy import accept, auditing, known_findings, open_reduce, participants
from p2ptrain.simulation import auditing as sim_auditing
from tests.simulation.defects.planting import Patch


def one_finding_is_enough(patch: Patch) -> None:
    patch(audits, "NEEDED", 1)


def undrawn_auditors_count(patch: Patch) -> None:
    """Findings of any peer count, whether or not it was drawn."""

    def finding_fault(at: LedgerState, finding: Finding) -> str:
        fault = original(at, finding)
        return "" if "was not drawn" in fault else fault

    original = audits.finding_fault
    for module in (audits, known_findings):
        patch(module, "finding_fault", finding_fault)


def findings_unsigned(patch: Patch) -> None:
    """The signatures of findings are not checked."""
    for module in (known_findings, verify):
        patch(module, "is_signed", lambda finding, verify: True)


def any_finding_is_a_fault(patch: Patch) -> None:
    """A finding that the claim is sound counts as well."""
    _with_cases(patch, lambda case: replace(case, kinds=frozenset(FOUND)))


def two_auditors_are_enough(patch: Patch) -> None:
    """With two auditors beside the claimant, a finding is not only a warning."""

    def first_auditors(audit: Audit, peer: PeerId) -> tuple[PeerId, ...]:
        return audits.drawn(audit.draw, peer, audit.auditors, audits.DRAWN)

    patch(audits, "first_auditors", first_auditors)


def draw_is_foreseeable(patch: Patch) -> None:
    """The draw depends on the claimant only, so it can choose when to lie."""

    def drawn(draw: Digest, peer: PeerId, auditors: object, count: int) -> tuple[PeerId, ...]:
        return original(Digest("0" * 64), peer, auditors, count)  # type: ignore[arg-type]

    original = audits.drawn
    patch(audits, "drawn", drawn)


def claims_judged_again(patch: Patch) -> None:
    """A claim can be judged again after a successful appeal."""
    patch(audits, "_judged", lambda audit, peer: audit)


def claims_judged_for_ever(patch: Patch) -> None:
    """Old claims can be judged although their data are gone."""
    patch(audits, "AUDIT_STEPS", 50)


def excluded_take_part(patch: Patch) -> None:
    """An excluded peer still takes part in averages."""
    patch(audits, "exclusion_fault", lambda at, roster, least: "")
    patch(participants, "_included", lambda rules, at, able, awaited: (able, awaited))


def excluded_return_early(patch: Patch) -> None:
    patch(audits, "EXCLUDED_STEPS", 3)


def excluded_for_ever(patch: Patch) -> None:
    patch(audits, "still_excluded", lambda excluded, step: excluded)


def exclusions_stop_the_run(patch: Patch) -> None:
    """Excluded peers do not take part even if too few others are ready."""

    def included(rules: object, at: LedgerState, able: list, awaited: list) -> object:  # type: ignore[type-arg]
        left = [each for each in able if each.peer not in at.excluded]
        return left, [peer for peer in awaited if peer not in at.excluded]

    patch(participants, "_included", included)


def excluded_lose_their_votes(patch: Patch) -> None:
    """A verdict takes away the vote of a peer."""

    def after_verdict(at: LedgerState, entry: object, verdict: object) -> LedgerState:
        after = original(at, entry, verdict)  # type: ignore[arg-type]
        voters = tuple(peer for peer in after.voters if peer not in after.excluded)
        learners = (*after.learners, *(peer for peer in after.voters if peer not in voters))
        return replace(after, voters=voters, learners=learners)

    original = apply_module._after_verdict
    patch(apply_module, "_after_verdict", after_verdict)


def one_judge_is_enough(patch: Patch) -> None:
    """One auditor can end an exclusion."""
    _with_cases(patch, lambda case: replace(case, needed=1) if case.appeal else case)


def first_auditors_judge_appeals(patch: Patch) -> None:
    """The auditors that found the fault may be drawn again for the appeal."""

    def after_verdict(at: LedgerState, verdict: object, entry: Digest) -> object:
        judged, excluded = original(at, verdict, entry)  # type: ignore[arg-type]
        drawn = {peer: audits.drawn(entry, peer, at.auditors, audits.JUDGES) for peer in excluded}
        fresh = {
            peer: replace(it, judges=drawn[peer]) if it.draw == entry else it
            for peer, it in excluded.items()
        }
        return judged, fresh

    original = audits.after_verdict
    patch(audits, "after_verdict", after_verdict)


def appeals_ignored(patch: Patch) -> None:
    """Findings of judges do not end an exclusion."""
    _with_cases(patch, lambda case: None if case.appeal else case)


def verdicts_not_proposed(patch: Patch) -> None:
    patch(open_reduce, "verdict_due", lambda at, reports: None)


def auditors_handpicked(patch: Patch) -> None:
    """A voter accepts any list of auditors."""
    patch(accept, "handpicked", lambda rules, at, reports, roster: "")


def _with_cases(patch: Patch, change: object) -> None:
    """Change every case that can be judged."""

    def case_of(at: LedgerState, peer: PeerId, draw: Digest) -> Case | None:
        case = original(at, peer, draw)
        return None if case is None else change(case)  # type: ignore[operator]

    original = audits.case_of
    for module in (audits, auditing, sim_auditing):
        patch(module, "case_of", case_of)

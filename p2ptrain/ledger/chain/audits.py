"""Rules of runs in which auditors check claims: SPEC.md, "Auditors and findings".

This module contains the rules that follow from the chain alone: which auditors are drawn, which
findings count, and when findings are enough. `policy/auditing.py` decides what to propose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.canonical import canonical, digest_of
from p2ptrain.ledger.chain.findings import (
    AUDITORS_MAX,
    FAULTS,
    Audit,
    Exclusion,
    Finding,
    Found,
    Verdict,
)

if TYPE_CHECKING:
    from p2ptrain.ledger.chain.signatures import Verify
    from p2ptrain.ledger.chain.state import LedgerState
    from p2ptrain.ledger.chain.values import Roster

DRAWN = 3
"""Number of auditors drawn for a claim."""

NEEDED = 2
"""Number of the drawn auditors whose findings exclude a peer."""

JUDGES = 5
"""Maximum number of auditors that decide an appeal."""

AUDIT_STEPS = 4
"""A claim can be judged until this many outer steps after its own. Contributions are kept for two
outer steps, and an auditor may need as much time again to repeat a link.
"""

EXCLUDED_STEPS = 8
"""Number of outer steps for which a peer is excluded from averages."""


def finding_message(draw: Digest, peer: PeerId, step: int, claim: Digest, found: Found) -> bytes:
    """Return the bytes that an auditor signs. `draw` covers the run and the line."""
    return b"p2ptrain-finding/1\n" + canonical([draw, peer, step, claim, found])


def is_signed(finding: Finding, verify: Verify) -> bool:
    parts = finding.draw, finding.peer, finding.step, finding.claim, finding.found
    return verify(finding.auditor, finding_message(*parts), finding.signature)


# ── the draw ─────────────────────────────────────────────────────────────────────────────────────


def drawn(draw: Digest, peer: PeerId, auditors: Iterable[PeerId], count: int) -> tuple[PeerId, ...]:
    """Return the `count` auditors of `peer` that the entry with digest `draw` draws; all of them if
    there are fewer. The claimant itself is never drawn.
    """

    def lot(auditor: PeerId) -> Digest:
        return digest_of(b"p2ptrain-auditor/1", [draw, peer, auditor])

    return tuple(sorted((each for each in auditors if each != peer), key=lot)[:count])


def first_auditors(audit: Audit, peer: PeerId) -> tuple[PeerId, ...]:
    """Return the three auditors of a claim; none if there are fewer than three."""
    three = drawn(audit.draw, peer, audit.auditors, DRAWN)
    return three if len(three) == DRAWN else ()


# ── which findings count ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Case:
    """A claim that can be judged. The findings of `needed` of the `auditors` are enough, if each of
    them is one of `kinds`. `appeal`: they end an exclusion.
    """

    step: int
    claim: Digest
    auditors: tuple[PeerId, ...]
    needed: int
    kinds: frozenset[str]
    appeal: bool


def case_of(state: LedgerState, peer: PeerId, draw: Digest) -> Case | None:
    """Return the case of `peer` whose auditors the entry with digest `draw` drew. Return None if
    there is no such case, or it cannot be judged any more.
    """
    excluded = state.excluded.get(peer)
    if excluded is not None:
        if excluded.draw != draw or not excluded.judges:
            return None
        judges, sound = excluded.judges, frozenset({"sound"})
        needed = len(judges) // 2 + 1
        return Case(excluded.step, excluded.claim, judges, needed, sound, appeal=True)
    audit = next((each for each in state.audits if each.draw == draw), None)
    claim = None if audit is None else audit.claims.get(peer)
    if audit is None or claim is None:
        return None
    three = first_auditors(audit, peer)
    return Case(audit.step, claim, three, NEEDED, FAULTS, appeal=False)


def finding_fault(state: LedgerState, finding: Finding) -> str:
    """Return the reason why a finding does not count now; empty if it counts. Its signature is not
    checked here.
    """
    case = case_of(state, finding.peer, finding.draw)
    if case is None:
        return f"no claim of {finding.peer} can be judged by auditors that this entry drew"
    if (finding.step, finding.claim) != (case.step, case.claim):
        return f"it is not about the claim of {finding.peer} in that update"
    if finding.auditor not in case.auditors:
        return f"{finding.auditor} was not drawn to audit {finding.peer}"
    if finding.found not in case.kinds:
        wanted = "that the claim is sound" if case.appeal else "a fault"
        return f"{finding.auditor} does not say {wanted}"
    return ""


def verdict_fault(state: LedgerState, verdict: Verdict) -> str:
    """Return the reason why `verdict` cannot come next; empty if it can. The signatures of its
    findings are not checked here.
    """
    for finding in verdict.findings:
        if fault := finding_fault(state, finding):
            return fault
    for peer in verdict.peers:
        said = verdict.about(peer)
        case = case_of(state, peer, said[0].draw)
        if case is None or any(each.draw != said[0].draw for each in said):
            return f"it judges two claims of {peer}"
        if len(said) != case.needed:
            return f"it has {len(said)} findings about {peer}; {case.needed} are needed"
    return ""


def after_verdict(
    state: LedgerState, verdict: Verdict, entry: Digest
) -> tuple[tuple[Audit, ...], Mapping[PeerId, Exclusion]]:
    """Return the audits and exclusions after `verdict`, the entry with digest `entry`."""
    audits, excluded = state.audits, dict(state.excluded)
    for peer in verdict.peers:
        first = verdict.about(peer)[0]
        if excluded.pop(peer, None) is not None:
            continue
        audit = next(each for each in audits if each.draw == first.draw)
        three = first_auditors(audit, peer)
        others = (each for each in state.auditors if each not in three)
        judges = drawn(entry, peer, others, JUDGES)
        until = state.step + EXCLUDED_STEPS
        excluded[peer] = Exclusion(until, first.step, first.claim, entry, judges)
        audits = tuple(_judged(each, peer) if each is audit else each for each in audits)
    return audits, excluded


def _judged(audit: Audit, peer: PeerId) -> Audit:
    """Return `audit` without the claim of `peer`, since a claim is judged once."""
    left = {each: claim for each, claim in audit.claims.items() if each != peer}
    return replace(audit, claims=left)


# ── the passing of outer steps ───────────────────────────────────────────────────────────────────


def audit_of(state: LedgerState, commit: Digest) -> tuple[Audit, ...]:
    """Return the audit that the Commit with digest `commit` begins: of all claims in its roster. It
    begins none if there are too few auditors.
    """
    if len(state.auditors) < DRAWN or state.roster is None:
        return ()
    claims = {it.peer: it.claim for it in state.roster.participants if it.claim is not None}
    return (Audit(state.step, commit, claims, state.auditors),)


def still_open(audits: Iterable[Audit], step: int) -> tuple[Audit, ...]:
    """Return the audits whose claims can still be judged in outer step `step`."""
    return tuple(each for each in audits if each.step + AUDIT_STEPS >= step)


def still_excluded(excluded: Mapping[PeerId, Exclusion], step: int) -> Mapping[PeerId, Exclusion]:
    """Return the exclusions that hold in outer step `step`."""
    return {peer: it for peer, it in excluded.items() if it.until > step}


# ── who audits ───────────────────────────────────────────────────────────────────────────────────


def may_audit(
    peer: PeerId,
    voters: Iterable[PeerId],
    learners: Iterable[PeerId],
    approved: frozenset[PeerId] | None,
) -> bool:
    """Return whether the organisers approved `peer`, a member, as an auditor (SPEC.md, A1).
    `approved` are the delegates in an open run; None if all members are approved.
    """
    return peer in voters or (peer in learners and (approved is None or peer in approved))


def auditors_fault(roster: Roster, approved: frozenset[PeerId] | None) -> str:
    """Return the reason why `roster` cannot name its auditors; empty if it can."""
    named = roster.auditors or ()
    if len(named) > AUDITORS_MAX:
        return f"it has {len(named)} auditors; the maximum is {AUDITORS_MAX}"
    for peer in named:
        if not may_audit(peer, roster.voters, roster.learners, approved):
            return f"{peer} cannot be an auditor: the organisers did not approve it"
    return ""


def auditors_after(
    named: tuple[PeerId, ...],
    voters: tuple[PeerId, ...],
    learners: tuple[PeerId, ...],
    approved: frozenset[PeerId] | None,
) -> tuple[PeerId, ...]:
    """Return those of the auditors in `named` that stay members and may audit."""
    return tuple(each for each in named if may_audit(each, voters, learners, approved))


def exclusion_fault(state: LedgerState, roster: Roster, participants_min: int) -> str:
    """Return the reason why a participant of `roster` cannot take part: it is excluded, and the
    others are enough (SPEC.md, A5). Empty if there is none.
    """
    out = [peer for peer in roster.peers if peer in state.excluded]
    if not out or len(roster.peers) - len(out) < participants_min:
        return ""
    until = state.excluded[out[0]].until
    return f"{out[0]} is excluded from averages until outer step {until}"

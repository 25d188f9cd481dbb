"""Chains with claims, auditors and findings, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.audits import finding_message, first_auditors
from p2ptrain.ledger.chain.findings import Finding, Found, Verdict
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Entry, Participant, Roster, Skip, Value
from p2ptrain.ledger.messages.claim_statement import ClaimStatement, claim_message
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.simulation.disk import signature_of
from p2ptrain.testing.ledgers import certify, digest, peers, small_rules

A, B, C, D, E, F = ALL = peers("a b c d e f")
RULES = replace(
    small_rules("a b c d e f", outer_steps=40, participants_min=2), claims=True, audits=True
)


def claim_of(peer: PeerId, step: int) -> Digest:
    return digest(f"the work of {peer} in {step}")


def ready(peer: PeerId, step: int = 0) -> Ready:
    """Return a report of `peer` with its signed claim for `step`."""
    parts = step, step + 1, 200, 2, claim_of(peer, step)
    return Ready.of(
        peer, ClaimStatement(*parts, signature_of(peer, claim_message(RULES.run, *parts)))
    )


def opening(
    state: LedgerState, taking: Iterable[PeerId] = ALL, auditors: tuple[PeerId, ...] | None = None
) -> Roster:
    """Return a roster that opens a reduce among `taking`."""
    parts = tuple(Participant(peer, 200, 2, claim_of(peer, state.step)) for peer in taking)
    place = state.step, state.attempt
    return Roster(*place, state.voters, state.learners, parts, auditors=auditors)


def after(state: LedgerState, *values: Value, rules: Rules = RULES) -> LedgerState:
    for value in values:
        state = apply(rules, state, certify(rules, state, value).entry)
    return state


def committed(
    state: LedgerState,
    taking: Iterable[PeerId] = ALL,
    auditors: tuple[PeerId, ...] | None = None,
    rules: Rules = RULES,
) -> LedgerState:
    """Return the state after an outer step with these participants."""
    state = after(state, opening(state, taking, auditors), rules=rules)
    return after(state, Commit(state.step, 0, digest(f"update {state.step}")), rules=rules)


def skipped(state: LedgerState, count: int) -> LedgerState:
    """Return the state after `count` outer steps that were opened and skipped."""
    for _ in range(count):
        taking = [peer for peer in ALL if peer not in state.excluded]
        state = after(state, opening(state, taking), Skip(state.step))
    return state


def finding(
    state: LedgerState, auditor: PeerId, peer: PeerId, found: Found = "link", step: int = 0
) -> Finding:
    """Return a signed finding about a claim that can be judged in `state`."""
    draw = next(each.draw for each in state.audits if each.step == step)
    return signed(auditor, peer, step, draw, claim_of(peer, step), found)


def signed(
    auditor: PeerId, peer: PeerId, step: int, draw: Digest, claim: Digest, found: Found
) -> Finding:
    said = finding_message(draw, peer, step, claim, found)
    return Finding(auditor, peer, step, draw, claim, found, signature_of(auditor, said))


def auditors_of(state: LedgerState, peer: PeerId, step: int = 0) -> tuple[PeerId, ...]:
    """Return the three auditors that were drawn for a claim, sorted."""
    audit = next(each for each in state.audits if each.step == step)
    return tuple(sorted(first_auditors(audit, peer)))


def verdict(state: LedgerState, *findings: Finding) -> Verdict:
    return Verdict(state.step, tuple(sorted(findings, key=lambda it: (it.peer, it.auditor))))


def conviction(state: LedgerState, *guilty: PeerId, step: int = 0) -> Verdict:
    """Return a verdict with the findings of two drawn auditors about each peer."""
    said = [
        finding(state, auditor, peer, step=step)
        for peer in guilty
        for auditor in auditors_of(state, peer, step)[:2]
    ]
    return verdict(state, *said)


def acquittal(state: LedgerState, peer: PeerId, count: int) -> Verdict:
    """Return a verdict with the findings of `count` judges that the claim is sound."""
    it = state.excluded[peer]
    said = [signed(judge, peer, it.step, it.draw, it.claim, "sound") for judge in it.judges]
    return verdict(state, *said[:count])


AUDITED = committed(genesis(RULES), auditors=ALL)
"""The state after one outer step in which all took part and all are auditors."""


def entry_after(state: LedgerState, value: Value) -> Entry:
    return Entry(state.height + 1, state.head, value)

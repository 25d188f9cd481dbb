"""Check a chain that a peer sends. Anybody who has the run's manifest can check it from genesis."""

from __future__ import annotations

from collections.abc import Iterable

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.audits import is_signed
from p2ptrain.ledger.chain.findings import Verdict
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Branch,
    Certificate,
    Certified,
    Entry,
    branch_message,
    vote_message,
)


def check_certified(
    rules: Rules, state: LedgerState, certified: Certified, verify: Verify
) -> LedgerState:
    """Return the state after `certified`. Raises RemoteProtocolError if it is not valid."""
    entry, certificate = certified.entry, certified.certificate
    fault = _certificate_fault(rules, state, entry, certificate, verify)
    if fault:
        raise RemoteProtocolError(f"the certificate of entry {entry.height} is not valid: {fault}")
    for finding in entry.value.findings if isinstance(entry.value, Verdict) else ():
        if not is_signed(finding, verify):
            what = f"the signature of {finding.auditor} under a finding is not valid"
            raise RemoteProtocolError(f"entry {entry.height} is not valid: {what}")
    return apply(rules, state, entry)


def replay(
    rules: Rules, chain: Iterable[Certified], verify: Verify, start: LedgerState | None = None
) -> LedgerState:
    """Check every entry and certificate, and return the state at the end of `chain`. The chain
    begins at genesis, or after the state `start`, which is not checked. Raises RemoteProtocolError
    for the first invalid entry.
    """
    state = genesis(rules) if start is None else start
    for certified in chain:
        state = check_certified(rules, state, certified, verify)
    return state


def _certificate_fault(
    rules: Rules, state: LedgerState, entry: Entry, certificate: Certificate, verify: Verify
) -> str:
    if certificate.height != entry.height or certificate.entry != entry.digest:
        return "it is for a different entry"
    if entry.height != state.height + 1:
        return f"the entry does not follow height {state.height}"
    if isinstance(entry.value, Branch):
        return _branch_fault(state, entry, entry.value, certificate, verify)
    strangers = certificate.voters.difference(state.voters)
    if strangers:
        return f"{min(strangers)} is not a voter"
    if not quorum.reached(rules.quorum, state.voters, certificate.voters):
        return f"{len(certificate.votes)} of {len(state.voters)} votes are not a quorum"
    proposer = quorum.proposer(state.voters, entry.height, certificate.round)
    if proposer not in certificate.voters:
        return f"it lacks the vote of its proposer, {proposer}"
    message = vote_message(state.line, entry.height, certificate.round, entry.digest)
    return _signature_fault(certificate, message, verify)


def _branch_fault(
    state: LedgerState, entry: Entry, branch: Branch, certificate: Certificate, verify: Verify
) -> str:
    """Return the reason why the certificate does not prove that all voters of the branch signed it;
    empty if it does. `why_invalid` decides whether the branch is allowed.
    """
    if certificate.round != 0 or certificate.voters != set(branch.voters):
        return "a branch must be signed by exactly its voters"
    return _signature_fault(certificate, branch_message(state.line, entry), verify)


def _signature_fault(certificate: Certificate, message: bytes, verify: Verify) -> str:
    for voter, signature in certificate.votes:
        if not verify(voter, message, signature):
            return f"the signature of {voter} is not valid"
    return ""

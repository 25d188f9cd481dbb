"""Claims and findings in stories about auditors."""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.audits import case_of, finding_message, first_auditors
from p2ptrain.ledger.chain.findings import FOUND, Finding
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.messages.claim_statement import ClaimStatement, claim_message
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.simulation.disk import signature_of
from p2ptrain.testing.ledgers import digest
from tests.ledger.transcript_player.fault import StoryFault


def with_claim(ready: Ready, state: LedgerState) -> Ready:
    """Return the report with a signed claim. Its serial number is the step's number plus one."""
    numbers = ready.step, ready.step + 1, ready.tokens, ready.blocks
    parts = *numbers, digest(f"the work of {ready.peer} in {ready.step}")
    said = claim_message(state.line, *parts)
    return Ready.of(ready.peer, ClaimStatement(*parts, signature_of(ready.peer, said)))


def finding_in(state: LedgerState, auditor: PeerId, peer: PeerId, what: str) -> Finding:
    """Return a finding about the newest claim of `peer`, or about the one that excluded it."""
    out = state.excluded.get(peer)
    draws = [each.draw for each in state.audits if peer in each.claims]
    draw = out.draw if out is not None else draws[-1] if draws else None
    case = None if draw is None else case_of(state, peer, draw)
    found = next((each for each in FOUND if each == what), None)
    if case is None or draw is None or found is None:
        raise StoryFault(f"no claim of {peer} can be judged, or {what!r} is no finding")
    said = finding_message(draw, peer, case.step, case.claim, found)
    signed = signature_of(auditor, said)
    return Finding(auditor, peer, case.step, draw, case.claim, found, signed)


def drawn_for(state: LedgerState, peer: PeerId) -> str:
    """Return the auditors drawn for the newest claim of `peer`, or for its appeal."""
    out = state.excluded.get(peer)
    if out is not None:
        return " ".join(sorted(out.judges))
    audits = [each for each in state.audits if peer in each.claims]
    return " ".join(sorted(first_auditors(audits[-1], peer))) if audits else ""

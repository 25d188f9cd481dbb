"""Whose turn it is to measure the loss of θ: one peer an outer step, agreed by nobody.

Everybody derives it from the ledger. If that peer is gone, the measurement of that step is missing,
which a curve can bear; at the end of the run everybody measures.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.state import LedgerState, Phase
from p2ptrain.node.history import History


def evaluates(history: History, state: LedgerState, me: PeerId, *, every: int) -> bool:
    """Whether `me` measures the loss of θ as it is at the ledger's head."""
    if state.phase is Phase.ENDED:
        return True
    if state.step % every:
        return False
    took_part = [participant.peer for participant in history.last_participants()]
    peers = sorted(took_part or state.learners or state.voters)
    return peers[state.step % len(peers)] == me

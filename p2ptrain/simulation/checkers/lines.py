"""Find the line of a voter's message: the run itself, or a branch of it.

Most messages do not name their line, since their signature verifies only for that line. So the
checkers try all lines that have ever begun.
"""

from __future__ import annotations

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import LineId, promise_message
from p2ptrain.ledger.messages.messages import Promise, Propose
from p2ptrain.simulation.disk import verify


class Lines:
    def __init__(self, genesis: LedgerState) -> None:
        self._run = genesis.line
        self._after: dict[Digest, LineId] = {genesis.head: genesis.line}

    def note(self, state: LedgerState) -> None:
        """Remember which line this ledger state belongs to."""
        self._after[state.head] = state.line

    def of_proposal(self, proposal: Propose) -> LineId:
        """Return the line of a proposal. If its parent is unknown, return the run: only liars make
        such proposals."""
        return self._after.get(proposal.entry.parent, self._run)

    def of_promise(self, voter: PeerId, promise: Promise) -> LineId | None:
        """Return the line of a promise; None if the signature does not verify for any line."""
        had = promise.accepted
        last, entry = (None, None) if had is None else (had.round, had.entry.digest)
        for line in dict.fromkeys(self._after.values()):
            said = promise_message(line, promise.height, promise.round, last, entry)
            if verify(voter, said, promise.signature):
                return line
        return None

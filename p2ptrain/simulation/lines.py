"""Which line of the run a voter's words are about: the run itself, or a branch of it.

Most messages do not say it, since a signature of another line does not verify. The checkers know
all lines that ever began, and look.
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
        """There is a chain with this state."""
        self._after[state.head] = state.line

    def of_proposal(self, proposal: Propose) -> LineId:
        """The run where nobody has shown what it follows: only liars speak of that."""
        return self._after.get(proposal.entry.parent, self._run)

    def of_promise(self, voter: PeerId, promise: Promise) -> LineId | None:
        """None if the voter did not sign it for any."""
        had = promise.accepted
        last, entry = (None, None) if had is None else (had.round, had.entry.digest)
        for line in dict.fromkeys(self._after.values()):
            said = promise_message(line, promise.height, promise.round, last, entry)
            if verify(voter, said, promise.signature):
                return line
        return None

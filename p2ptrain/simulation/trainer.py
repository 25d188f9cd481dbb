"""The inner phase of a simulated node, which trains on its whole lease (the blocks assigned to it)
at once.

The trained blocks are the first blocks of the lease. They are lost when the process ends, and kept
when a step is committed without them. `ready` returns the report for the ledger's current step.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.messages.peer_reports import Ready


class SimTrainer:
    def __init__(self, rules: Rules, me: PeerId, *, trains: bool) -> None:
        self.trained: tuple[int, ...] = ()
        self._rules = rules
        self._me = me
        self._trains = trains

    def follow(self, state: LedgerState) -> None:
        """Drop trained blocks that were committed or leased to others, after a new entry."""
        lease = state.leases.get(self._me, ())
        kept = self.trained
        while kept and kept[0] not in lease[:1]:
            kept = kept[1:]
        self.trained = kept if kept == lease[: len(kept)] else ()

    def left(self, state: LedgerState) -> int:
        """Return the number of blocks of the lease that are still to be trained on."""
        if not self._trains or state.phase is Phase.ENDED:
            return 0
        return len(state.leases.get(self._me, ())) - len(self.trained)

    def finish(self, state: LedgerState) -> None:
        self.trained = state.leases.get(self._me, ())

    def ready(self, state: LedgerState) -> Ready | None:
        if not state.is_member(self._me) or state.phase is Phase.ENDED or self.left(state):
            return None
        blocks = len(self.trained)
        return Ready(self._me, state.step, blocks * self._rules.tokens_per_block, blocks)

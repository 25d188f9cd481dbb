"""Who trained what, by a ledger's chain."""

from __future__ import annotations

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.state import apply, genesis
from p2ptrain.ledger.values import Certified, Commit
from p2ptrain.node.chain import rules_of
from p2ptrain.run import Run

Credits = dict[PeerId, tuple[int, ...]]
"""Who trained which blocks."""


class Account:
    """Who trained what, by a chain that grows at its end: replayed once, since tests ask often."""

    def __init__(self, chain: list[Certified], run: Run) -> None:
        self.chain = chain
        self._rules = rules_of(run)
        self._state = genesis(self._rules)
        self._committed: list[tuple[int, Digest, Credits]] = []

    def committed(self) -> list[tuple[int, Digest, Credits]]:
        for certified in self.chain[self._state.height :]:
            state, value = self._state, certified.entry.value
            if isinstance(value, Commit):
                assert state.roster is not None
                credits = {
                    part.peer: state.leases[part.peer][: part.blocks]
                    for part in state.roster.participants
                }
                self._committed.append((value.step, value.update, credits))
            self._state = apply(self._rules, state, certified.entry)
        return self._committed

"""Derive from a ledger's chain which peer trained on which blocks, and check updates against it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2ptrain.archive.ledger_on_disk import rules_of
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified, Commit, Entry
from p2ptrain.observe.journal import read_journal
from p2ptrain.observe.trained import TrainingAudit, check_trained
from p2ptrain.run import Run
from p2ptrain.testing.fake_trainer import trace

Credits = dict[PeerId, tuple[int, ...]]
"""The blocks that each peer trained on."""


def trained_by(chain: Iterable[Certified], run: Run, journals: Iterable[Path]) -> TrainingAudit:
    """Check that all committed blocks of a chain that begins at genesis were trained on once,
    according to the journals of all participants."""
    rules = rules_of(run)
    records = (record for journal in journals for record in read_journal(journal))
    return check_trained(genesis(rules), _states_before(rules, chain), records)


def _states_before(rules: Rules, chain: Iterable[Certified]) -> Iterator[tuple[LedgerState, Entry]]:
    state = genesis(rules)
    for certified in chain:
        yield state, certified.entry
        state = apply(rules, state, certified.entry)


class ChainCredits:
    """The credits of a growing chain. Each entry is replayed only once, because tests call
    `committed` often."""

    def __init__(self, chain: Sequence[Certified], run: Run) -> None:
        self.chain = chain
        self._rules = rules_of(run)
        self._state = genesis(self._rules)
        self._committed: list[tuple[int, Digest, Credits]] = []
        self._leased: dict[PeerId, set[int]] = {}

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
            for peer, lease in self._state.leases.items():
                self._leased.setdefault(peer, set()).update(lease)
        return self._committed

    def leased(self, peer: PeerId) -> set[int]:
        """Return all blocks that were ever leased to this peer."""
        self.committed()
        return self._leased.get(peer, set())


def update_fault(
    found: NDArray[np.float32], credits: Credits, data: Callable[[int], Digest]
) -> str:
    """Return what is wrong with an update, in words, or "". The update must be the average, with
    the agreed weights, of exactly the fake trainers' work on the credited blocks."""
    due = np.zeros(len(found), dtype=np.float64)
    for theirs in credits.values():
        due += len(theirs) * sum(trace(data(block), len(found)) for block in theirs)
    due /= sum(len(theirs) for theirs in credits.values())
    # Each hop rounds to 1/254 of a block's largest sum. The bound is more than twice that.
    tolerance = (len(credits) + 1) * np.abs(due).max() / 100
    off = np.abs(found - due).max()
    return "" if off <= tolerance else f"it is off by {off:.3g}; rounding explains {tolerance:.3g}"

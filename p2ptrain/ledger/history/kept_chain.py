"""The part of the chain that this node keeps: all of it, or what follows the pruned entries.

All lookups of an entry by height, or of an update by outer step, go through this module. So the
rest of the ledger does not need to know where the kept part begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified, Commit
from p2ptrain.ledger.history.base import Base


@dataclass(frozen=True, slots=True)
class CommittedUpdate:
    """The update that ended an outer step, and the height of its Commit."""

    step: int
    height: int
    update: Digest


class KeptChain:
    """The kept part of the chain.

    `start` is the state before the first of `entries`. With a base (the certified state that
    replaces pruned entries), the first entry is the base's own Commit. `updates` maps each outer
    step that ended with a kept Commit to its update.
    """

    def __init__(self, rules: Rules, base: Base | None = None) -> None:
        self.base = base
        self.start: LedgerState = genesis(rules) if base is None else base.state
        self.entries: list[Certified] = []
        self.updates: dict[int, CommittedUpdate] = {}

    def append(self, certified: Certified) -> None:
        self.entries.append(certified)
        value = certified.entry.value
        if isinstance(value, Commit):
            height = certified.entry.height
            self.updates[value.step] = CommittedUpdate(value.step, height, value.update)

    def at(self, height: int) -> Certified | None:
        """Return the entry at `height`, or None if it is pruned or not yet decided."""
        index = height - self.start.height - 1
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def prune(self, base: Base) -> int:
        """Forget the entries before `base`. Return their number."""
        assert self.at(base.checkpoint.height) == base.commit, "the base must be part of this chain"
        count = base.state.height - self.start.height
        del self.entries[:count]
        for step in [step for step in self.updates if step < base.step]:
            del self.updates[step]
        self.base, self.start = base, base.state
        return count

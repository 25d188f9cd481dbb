"""A simulated node that deletes old entries, and may begin at a checkpoint that its user gave it.

Such a node fetches a base: the state at the checkpoint, with the Commit that certifies it. A thief
who has the keys of former voters could offer a forged base, a false state with valid signatures.
Only the checkpoint's digest distinguishes the forged base from the true one.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import Certificate, Certified, Commit, vote_message
from p2ptrain.ledger.history import check_base
from p2ptrain.ledger.history.base import Base
from p2ptrain.ledger.history.kept_chain import KeptChain
from p2ptrain.ledger.history.pruning import base_at, prunable_to
from p2ptrain.simulation.disk import signature_of, verify
from p2ptrain.simulation.node import ProcessDied, SimNode

FORGED = 0.5
"""Probability that a newcomer is first offered a forged base."""


class Pruner(SimNode):
    """`base` is the start of the node's chain, if its user gave it a checkpoint. `keep_entries` is
    the number of entries that the node keeps."""

    def __init__(self, *place: Any, keep_entries: int, base: Base | None, **rest: Any) -> None:
        super().__init__(*place, **rest)
        self._keep_entries = keep_entries
        self._loaded = False
        self.disk.base = base

    def boot(self) -> None:
        super().boot()
        self._loaded = self.disk.base is None

    def follow(self) -> None:
        super().follow()
        self._prune()

    def _apply_updates(self) -> None:
        if not self._loaded:
            self._load()
        if self._loaded:
            super()._apply_updates()

    def _load(self) -> None:
        """Load θ from this node's own snapshot, or from the newest certified one. The kept chain
        must contain the entries that follow the snapshot."""
        first = self.ledger.kept.start.step
        for snapshot in (self.disk.snapshot, self.state.snapshot):
            if snapshot is not None and snapshot.step >= first and not self._loaded:
                self.theta, self.theta_step = snapshot.digest, snapshot.step
                self._loaded = True

    def _prune(self) -> None:
        """Prune the disk atomically, then the memory. The process may die before either step."""
        kept, own = self.ledger.kept, self.disk.snapshot
        if own is None:
            return
        height = prunable_to(kept.entries, keep_entries=self._keep_entries, step_max=own.step)
        base = None if height is None else base_at(self._rules, kept, height)
        if base is None:
            return
        self._die_perhaps()
        self.disk.prune(base)
        self._die_perhaps()
        kept.prune(base)

    def _die_perhaps(self) -> None:
        if self._world.faults.crashes_now(self):
            raise ProcessDied


def base_for_newcomer(rules: Rules, kept: KeptChain, random: Random) -> Base | None:
    """Return the base for a newcomer whose user knows the newest checkpoint of `kept`; None if
    there is no checkpoint yet. The newcomer may be offered a forged base first."""
    heights = [
        certified.entry.height
        for certified in kept.entries
        if isinstance(certified.entry.value, Commit) and certified.entry.value.state is not None
    ]
    true = base_at(rules, kept, heights[-1]) if heights else None
    if true is None:
        return None
    offered = [forged(rules, true)] if random.random() < FORGED else []
    for base in (*offered, true):
        try:
            check_base.check_base(rules, base, true.checkpoint, verify)
        except RemoteProtocolError:
            continue
        return base
    return None


def forged(rules: Rules, true: Base) -> Base:
    """Return a base with a state different from that of `true`, and with valid signatures."""
    state, old = replace(true.state, tokens=true.state.tokens + 1), true.commit
    assert isinstance(old.entry.value, Commit)
    entry = replace(old.entry, value=replace(old.entry.value, state=state.digest))
    round = old.certificate.round
    message = vote_message(state.line, entry.height, round, entry.digest)
    votes = tuple((voter, signature_of(voter, message)) for voter, _ in old.certificate.votes)
    return Base(state, Certified(entry, Certificate(entry.height, round, entry.digest, votes)))

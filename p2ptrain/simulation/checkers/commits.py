"""Check Commits (S3 and S12 in SPEC.md): voters hold the update's bytes, and a reduce made them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Commit
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.liars.spoiling import update_apart
from p2ptrain.simulation.rings import update_of


@dataclass(slots=True)
class CommitsAreHeld(Watch):
    """S3: every honest voter in the certificate of a Commit has the update on disk."""

    liars: frozenset[PeerId] = frozenset()

    def on_decision(self, decision: Decision) -> None:
        value = decision.value
        if isinstance(value, Commit):
            for voter in decision.certified.certificate.voters - self.liars:
                if value.update not in decision.disks[voter].updates:
                    self.object(f"{voter} voted for update {value.update[:8]} without holding it")


@dataclass(slots=True)
class CommitsAreMade(Watch):
    """S12: a committed update is the result of the reduce. Two cases are exempt: most participants
    lie, or in a later round a liar claimed that a different update was accepted. If there are
    `spoilers`, which may send a different average to each participant, the result of any
    participant is also allowed."""

    liars: frozenset[PeerId] = frozenset()
    spoilers: Collection[PeerId] = ()

    def on_decision(self, decision: Decision) -> None:
        value, round = decision.value, decision.certified.certificate.round
        roster = decision.before.roster
        if not isinstance(value, Commit) or roster is None or (self.liars and round > 0):
            return
        if 2 * len(self.liars.intersection(roster.peers)) > len(roster.peers):
            return
        made = update_of(decision.before.head)
        apart = [update_apart(made, peer) for peer in roster.peers] if self.spoilers else []
        if value.update not in (made, *apart):
            height = decision.after.height
            self.object(f"entry {height} commits an update that the reduce did not produce")

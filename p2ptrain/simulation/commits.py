"""What a Commit rests on: bytes that its voters hold, and that a reduce has made."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Commit
from p2ptrain.simulation.rings import update_of
from p2ptrain.simulation.spoiling import update_apart
from p2ptrain.simulation.watching import Decision, Watch


@dataclass(slots=True)
class CommitsAreHeld(Watch):
    """S3: everybody whose vote stands under a Commit has the update on disk, liars apart."""

    liars: frozenset[PeerId] = frozenset()

    def on_decision(self, decision: Decision) -> None:
        value = decision.certified.entry.value
        if isinstance(value, Commit):
            for voter in decision.certified.certificate.voters - self.liars:
                if value.update not in decision.disks[voter].updates:
                    self.object(f"{voter} voted for update {value.update[:8]} without holding it")


@dataclass(slots=True)
class CommitsAreMade(Watch):
    """S12: what is committed came out of the reduce, unless most of its participants lie, or in a
    later round a liar claimed that it was accepted. Where `spoilers` send each another mean, each
    has made its own.
    """

    liars: frozenset[PeerId] = frozenset()
    spoilers: tuple[PeerId, ...] = ()

    def on_decision(self, decision: Decision) -> None:
        value, round = decision.certified.entry.value, decision.certified.certificate.round
        roster = decision.before.roster
        if not isinstance(value, Commit) or roster is None or (self.liars and round > 0):
            return
        if 2 * len(self.liars.intersection(roster.peers)) > len(roster.peers):
            return
        made = update_of(decision.before.head)
        apart = [update_apart(made, peer) for peer in roster.peers] if self.spoilers else []
        if value.update not in (made, *apart):
            self.object(f"entry {decision.after.height} commits what no reduce has made")

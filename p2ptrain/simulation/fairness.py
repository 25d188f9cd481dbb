"""Nobody is given up, left out or starved without a cause. The causes are the world's ground truth.

The ledger may err on the safe side in a world of loss and spikes; in an orderly one it may not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Commit, Roster
from p2ptrain.simulation.troubles import Troubles
from p2ptrain.simulation.watching import Decision, Watch

STARVED_COMMITS = 8
"""So many commits in a row without a member that is well: longer than any retry takes."""

STARVED_COMMITS_SLOW = 24
"""A slow peer needs several steps for a lease, and holds up to four leases after skips."""


@dataclass(slots=True)
class LeavesHaveCauses(Watch):
    """A stop, a crash or a cut costs a member its place once at most: no flapping."""

    troubles: Troubles | None = None
    orderly: bool = False
    dropped: Counter[PeerId] = field(default_factory=Counter)

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first or not isinstance(decision.certified.entry.value, Roster):
            return
        assert self.troubles is not None
        for peer in decision.before.members:
            if decision.after.is_member(peer):
                continue
            self.dropped[peer] += 1
            if self.orderly and self.dropped[peer] > self.troubles.causes[peer]:
                self.object(
                    f"{peer} was dropped {self.dropped[peer]} times, "
                    f"and had trouble {self.troubles.causes[peer]} times"
                )


@dataclass(slots=True)
class NobodyIsUsurped(Watch):
    """Nobody loses its place to a liar (SPEC.md S11): who is well and honest stays."""

    liars: Collection[PeerId] = ()
    troubles: Troubles | None = None

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first or not isinstance(decision.certified.entry.value, Roster):
            return
        assert self.troubles is not None
        for peer in decision.before.members:
            is_well = peer in self.troubles.since and peer not in self.liars
            if is_well and not decision.after.is_member(peer):
                self.object(f"{peer} was dropped at height {decision.after.height}, and is well")


@dataclass(slots=True)
class NobodyIsStarved(Watch):
    """Whoever is a member, up, connected and trained takes part: in an orderly world in every
    commit, unless it is slow; in any other after a few commits.
    """

    troubles: Troubles | None = None
    orderly: bool = False
    seeds: Collection[PeerId] = ()
    without: Counter[PeerId] = field(default_factory=Counter)
    step_began: float = 0.0

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first or isinstance(decision.certified.entry.value, Roster):
            return
        assert self.troubles is not None
        if isinstance(decision.certified.entry.value, Commit):
            self._on_commit(decision, self.troubles)
        self.step_began = self.troubles.now

    def _on_commit(self, decision: Decision, troubles: Troubles) -> None:
        before = decision.before
        took_part = set() if before.roster is None else set(before.roster.peers)
        for member in before.members:
            since = troubles.since.get(member)
            was_well = since is not None and since <= self.step_began
            was_well = was_well and before.since[member] < max(before.step, 1)
            if member in took_part or member in self.seeds or not was_well:
                self.without[member] = 0
                continue
            self.without[member] += 1
            self._judge(member, before.step, slow=member in troubles.slow)

    def _judge(self, member: PeerId, step: int, *, slow: bool) -> None:
        bound = STARVED_COMMITS_SLOW if slow else 0 if self.orderly else STARVED_COMMITS
        if self.without[member] > bound:
            self.object(f"{member} has no part in {self.without[member]} commits up to step {step}")

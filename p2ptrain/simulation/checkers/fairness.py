"""Check that members are not dropped or left out without a cause. The world knows the causes.

With message loss and delay spikes, the ledger can make mistakes. In an orderly world (see
`Profile.is_orderly`) it must not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Roster
from p2ptrain.ledger.policy.blame import LEFT_OUT_MAX
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.checkers.watching import Decision, Watch

STARVED_COMMITS = LEFT_OUT_MAX
"""Maximum number of commits in a row without a healthy member. It is the promise of SPEC.md S13:
after this many commits, honest proposers forgive a peer whatever they remember of it."""

STARVED_COMMITS_SLOW = 24
"""The same maximum for a slow peer, which needs several outer steps to train on a lease (the blocks
assigned to it), and may hold four leases after skipped steps."""


@dataclass(slots=True)
class LeavesHaveCauses(Watch):
    """Each stop, crash or network cut costs a member its place at most once."""

    troubles: Troubles
    orderly: bool = False
    dropped: Counter[PeerId] = field(default_factory=Counter)

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first or not isinstance(decision.value, Roster):
            return
        for peer in decision.before.members:
            if decision.after.is_member(peer):
                continue
            self.dropped[peer] += 1
            if self.orderly and self.dropped[peer] > self.troubles.causes[peer]:
                self.object(
                    f"{peer} was dropped {self.dropped[peer]} times, "
                    f"but had trouble only {self.troubles.causes[peer]} times"
                )


@dataclass(slots=True)
class NobodyIsUsurped(Watch):
    """S11: liars cannot get a healthy and honest member dropped."""

    troubles: Troubles
    liars: Collection[PeerId] = ()

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first or not isinstance(decision.value, Roster):
            return
        for peer in decision.before.members:
            is_well = peer in self.troubles.since and peer not in self.liars
            if is_well and not decision.after.is_member(peer):
                self.object(f"{peer} was dropped at {decision.after.height} although it is healthy")


@dataclass(slots=True)
class NobodyIsStarved(Watch):
    """If a member is up, connected and has trained, it takes part in reduces. In an orderly world
    it takes part in every commit, unless it is slow; in other worlds, within a few commits."""

    troubles: Troubles
    orderly: bool = False
    seeds: Collection[PeerId] = ()
    without: Counter[PeerId] = field(default_factory=Counter)
    step_began: float = 0.0

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first or isinstance(decision.value, Roster):
            return
        if isinstance(decision.value, Commit):
            self._on_commit(decision.before)
        self.step_began = self.troubles.now

    def _on_commit(self, before: LedgerState) -> None:
        took_part = set() if before.roster is None else set(before.roster.peers)
        excluded = before.excluded  # ExclusionsAreKept checks who is excluded, and for how long.
        for member in before.members:
            since = self.troubles.since.get(member)
            was_well = since is not None and since <= self.step_began
            was_well = was_well and before.since[member] < max(before.step, 1)
            if member in took_part or member in self.seeds or not was_well or member in excluded:
                self.without[member] = 0
                continue
            self.without[member] += 1
            self._judge(member, before.step, slow=member in self.troubles.slow)

    def _judge(self, member: PeerId, step: int, *, slow: bool) -> None:
        bound = STARVED_COMMITS_SLOW if slow else 0 if self.orderly else STARVED_COMMITS
        if self.without[member] > bound:
            self.object(
                f"{member} was left out of {self.without[member]} commits up to step {step}"
            )

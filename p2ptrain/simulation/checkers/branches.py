"""Check that voters do not leave a quorum for a branch, and that peers move to stronger branches.

B3 and B5 are rules of ledger/SPEC.md. The rank of chains is computed here independently of the
ledger's own code, entry by entry, from the states that the simulated peers have reached.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import Branch
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.checkers.watching import Chain, Decision, Watch


@dataclass(slots=True)
class NobodyIsDrawnAway(Watch):
    """B3: a voter follows a branch that does not name it only if its own chain has had no new entry
    for a long time. (If a quorum were connected to the voter, it would have decided entries in that
    time.)

    The time at which the entry was decided counts. An old entry that arrives later, in answer to a
    request, does not show which voters are present now.
    """

    rules: Rules
    troubles: Troubles
    quiet_since: dict[PeerId, float] = field(default_factory=dict)
    decided_at: dict[Digest, float] = field(default_factory=dict)

    def on_boot(self, peer: PeerId) -> None:
        self.quiet_since[peer] = self.troubles.now

    def on_decision(self, decision: Decision) -> None:
        node, entry, now = decision.node, decision.certified.entry, self.troubles.now
        quiet_since = self.quiet_since.get(node, 0.0)
        decided_at = self.decided_at.setdefault(entry.digest, now)
        if not isinstance(entry.value, Branch):
            self.quiet_since[node] = max(quiet_since, decided_at)
            return
        unnamed = node in decision.before.voters and node not in entry.value.voters
        if unnamed and now - quiet_since < self.rules.branch_after_s / 2:
            waited = f"only {now - quiet_since:.1f} s after the last entry of its chain"
            self.object(f"{node} joins a branch that does not name it, {waited}")
        self.quiet_since[node] = now


@dataclass(slots=True)
class HealsGoUp(Watch):
    """B5: a peer leaves its chain only for a chain that ranks higher."""

    tokens: dict[Digest, int] = field(default_factory=dict)

    def on_decision(self, decision: Decision) -> None:
        self.tokens[decision.after.head] = decision.after.tokens

    def on_rejoin(self, peer: PeerId, ours: Chain, theirs: Chain) -> None:
        """Check that `peer` is allowed to replace the entries `ours` with `theirs`. Both have the
        same parent."""
        mine, other = ours[0].entry, theirs[0].entry
        if not isinstance(mine.value, Branch):
            self.object(f"{peer} drops entry {mine.height}, which a quorum of its line decided")
        elif isinstance(other.value, Branch):
            own = (len(mine.value.voters), self._stretch(ours))
            won = (len(other.value.voters), self._stretch(theirs))
            if won < own or (won == own and other.digest > mine.digest):
                self.object(
                    f"{peer} drops its branch with {own[0]} voters and {own[1]} tokens for one "
                    f"with {won[0]} and {won[1]}"
                )

    def _stretch(self, chain: Chain) -> int:
        """Return the total number of tokens that the run has committed by the end of the first
        branch in `chain`."""
        length = next(
            (at for at in range(1, len(chain)) if isinstance(chain[at].entry.value, Branch)),
            len(chain),
        )
        return self.tokens[chain[length - 1].entry.digest]

"""Which reports cannot change what to propose: thousands of members report, few reports decide.

What to propose is worked out from all members' reports, which costs time in proportion to their
number. While it is nothing yet, one member more that is ready changes that only if it is the last
one awaited, or makes the quorum or the contributors enough; and once a commit is wanted, more
voices for the same update change nothing. A tally knows this in constant time; in any other case
it says so, and everything is worked out anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger import quorum
from p2ptrain.ledger.events import Event, Ready, ReduceDone
from p2ptrain.ledger.gathering import Wish, fits_lease, gathered
from p2ptrain.ledger.rules import Rules
from p2ptrain.ledger.state import LedgerState, Phase
from p2ptrain.ledger.values import Commit
from p2ptrain.ledger.view import View


@dataclass(slots=True)
class Tally:
    """Of one step's reports, as long as nothing but reports comes in."""

    rules: Rules
    state: LedgerState
    voters: frozenset[PeerId]
    awaited: set[PeerId]
    voters_ready: int
    first_ready: bool
    contributors: int

    @staticmethod
    def of(rules: Rules, state: LedgerState, view: View) -> Tally:
        """As things stand now. Costs as much as working out what to propose."""
        have = gathered(rules, state, view)
        up = [voter for voter in state.voters if voter not in view.down]
        ready = {v for v in up if v in view.ready and view.ready[v].step == state.step}
        return Tally(
            rules=rules,
            state=state,
            voters=frozenset(state.voters),
            awaited=set(have.awaited),
            voters_ready=len(ready),
            first_ready=state.voters[0] in ready,
            contributors=len(have.contributors),
        )

    def absorbs(self, report: Ready) -> bool:
        """Count an awaited member's report. False if what to propose may be another after it."""
        if report.step != self.state.step or report.peer not in self.awaited:
            return False
        before = self._standing()
        self.awaited.discard(report.peer)
        self.contributors += fits_lease(self.rules, self.state, report)
        self.voters_ready += report.peer in self.voters
        self.first_ready = self.first_ready or report.peer == self.state.voters[0]
        return bool(self.awaited) and self._standing() == before

    def _standing(self) -> tuple[bool, bool]:
        """Whether contributors are enough, and whether a quorum is ready."""
        voters, first = len(self.state.voters), self.first_ready
        policy = self.rules.quorum
        return (
            self.contributors >= self.rules.participants_min,
            quorum.is_enough(policy, voters, self.voters_ready, first_present=first),
        )


def can_tally(state: LedgerState, wish: Wish | None) -> bool:
    """Whether reports of readiness are worth counting: nothing is wanted yet."""
    return state.phase is Phase.GATHER and wish is not None and wish.value is None


def confirms(wish: Wish | None, event: Event) -> bool:
    """Whether `event` is one more voice for the commit that is wanted already."""
    if wish is None or not isinstance(wish.value, Commit) or not isinstance(event, ReduceDone):
        return False
    value = wish.value
    return (event.step, event.attempt, event.update) == (value.step, value.attempt, value.update)

"""The policy of one height's consensus: what to propose, what to accept, which peers have the
bytes, which are down.

A Counsel holds until an event that its tally does not absorb, or until the time at which its wish
wants to be reconsidered. Each judgement uses all reports received by then.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.terms import amended
from p2ptrain.ledger.chain.values import Roster, Value
from p2ptrain.ledger.messages.events import Event
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.policy import accept, propose
from p2ptrain.ledger.policy.incremental import Tally
from p2ptrain.ledger.policy.open_reduce import Wish
from p2ptrain.ledger.policy.reduce_order import Arrange, arranged
from p2ptrain.ledger.policy.reports import View


@dataclass(slots=True)
class Counsel:
    rules: Rules
    state: LedgerState
    view: View
    arrange: Arrange
    wish: Wish
    tally: Tally | None

    @staticmethod
    def of(rules: Rules, state: LedgerState, view: View, arrange: Arrange, now: float) -> Counsel:
        wish, tally = propose.reconsider(rules, state, view, now)
        return Counsel(rules, state, view, arrange, wish, tally)

    @property
    def down(self) -> AbstractSet[PeerId]:
        return self.view.down

    def absorbs(self, event: Event) -> bool:
        """Take `event` in. Return whether the wish is certain to stay the same."""
        return self.tally is not None and self.tally.absorbs(event)

    def holds(self, now: float) -> bool:
        look_at = self.wish.look_again_at
        return look_at is None or now < look_at

    def complete(self, value: Value) -> Value:
        """Return the value to propose for this wish. Call it only when proposing, since it may take
        long.
        """
        return amended(arranged(value, self.arrange), self.state.terms, self.view.terms)

    def causes(self, value: Value) -> tuple[Evidence, ...]:
        """Return the evidence that justifies taking votes from founders by `value`. Nobody votes
        for such a roster without it (SPEC.md F3), and an announcement may have been lost.
        """
        if self.view.founders is None or not isinstance(value, Roster):
            return ()
        dropped = set(self.state.voters).difference(value.voters)
        return tuple(it for peer, it in self.view.accused.items() if peer in dropped)

    def judge(
        self,
        value: Value,
        now: float,
        *,
        forced: bool,
        doubtful: bool,
        late: bool,
        proposer: PeerId,
    ) -> accept.Verdict:
        known = (self.rules, self.state, self.view, value, now)
        return accept.may_accept(
            *known, forced=forced, doubtful=doubtful, late=late, proposer=proposer
        )

    def holders(self, update: Digest, proposer: PeerId) -> tuple[PeerId, ...]:
        return accept.holders_of(self.state, self.view, update, proposer)

"""The policy of one height's consensus: what to propose, what to accept, which peers have an
update, and which are down.

The wish (`what_to_propose`) is a pure function of rules, state, reports and time. It always has a
reason in words, and names the peers that the node waits for; the status shows both to users. Grace
and patience count from times noted in the view (such as `View.enough_since`), so this module does
not need a clock or a memory.

A Policy is valid until a report arrives that its tally does not absorb, or until `look_again_at` of
its wish. Each judgement uses all reports received so far.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.terms import amended
from p2ptrain.ledger.chain.values import Heal, Roster, Value
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.messages.peer_reports import AnyReport
from p2ptrain.ledger.paxos.height_policy import Judgement
from p2ptrain.ledger.policy import accept, participants
from p2ptrain.ledger.policy.close_reduce import while_reducing
from p2ptrain.ledger.policy.grace import grace_after
from p2ptrain.ledger.policy.incremental import ReadyTally, Tally, tally_of_reduce
from p2ptrain.ledger.policy.open_reduce import while_gathering
from p2ptrain.ledger.policy.participants import Readiness
from p2ptrain.ledger.policy.reduce_order import Arrange, arranged
from p2ptrain.ledger.policy.reduce_results import alone_too_long, failure_known, finished_update
from p2ptrain.ledger.policy.reports import View
from p2ptrain.ledger.policy.wish import Wish


@dataclass(slots=True)
class Policy:
    rules: Rules
    state: LedgerState
    view: View
    arrange: Arrange
    wish: Wish
    tally: Tally | None

    @staticmethod
    def of(rules: Rules, state: LedgerState, view: View, arrange: Arrange, now: float) -> Policy:
        wish, tally = reconsider(rules, state, view, now)
        return Policy(rules, state, view, arrange, wish, tally)

    @property
    def wanted(self) -> Value | None:
        return self.wish.value

    @property
    def down(self) -> AbstractSet[PeerId]:
        return self.view.down

    def absorbs(self, event: AnyReport) -> bool:
        """Handle `event`. Return whether the wish is certain to stay the same."""
        return self.tally is not None and self.tally.absorbs(event)

    def holds(self, now: float) -> bool:
        look_at = self.wish.look_again_at
        return look_at is None or now < look_at

    def complete(self, value: Value) -> Value:
        """Return the value to propose for this wish. This can take long, so call it only to
        propose.
        """
        return amended(arranged(value, self.arrange), self.state.terms, self.view.terms)

    def causes(self, value: Value) -> tuple[Evidence, ...]:
        """Return the evidence that justifies taking votes from founders in `value`. Voters do not
        vote for such a roster without it (SPEC.md F3), and its announcement may have been lost.
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
    ) -> Judgement:
        known = (self.rules, self.state, self.view, value, now)
        return accept.may_accept(
            *known, forced=forced, doubtful=doubtful, late=late, proposer=proposer
        )

    def holders(self, update: Digest, proposer: PeerId) -> tuple[PeerId, ...]:
        return accept.holders_of(self.state, self.view, update, proposer)


def what_to_propose(rules: Rules, state: LedgerState, view: View, now: float) -> Wish:
    """Return the value that this node would propose now, or what it waits for."""
    if state.phase is Phase.HEALED:
        return Wish(None, "this branch has healed; looking for the chain to follow")
    if view.outranked_by is not None and state.past:
        parting = view.outranked_by
        heal = Heal(state.step, parting.height, parting.digest)
        return Wish(heal, "a chain that outranks this branch was found")
    if state.phase is Phase.GATHER:
        have = participants.readiness(rules, state, view)
        return while_gathering(rules, state, view, have, now)
    if state.phase is Phase.REDUCE:
        return while_reducing(rules, state, view, now)
    return Wish(None, "the run has ended")


def reconsider(
    rules: Rules, state: LedgerState, view: View, now: float
) -> tuple[Wish, Tally | None]:
    """Note in `view` when enough members were first ready, and when a failure or a result was first
    known: waiting times count from there. Return what to propose, and a tally that recognises
    reports that cannot change it.
    """
    if view.outranked_by is not None:
        return what_to_propose(rules, state, view, now), None
    if state.phase is Phase.GATHER:
        if view.gathering_since is None:
            view.gathering_since = now
        have = participants.readiness(rules, state, view)
        _note_enough(rules, state, view, have, now)
        wish = while_gathering(rules, state, view, have, now)
        return wish, ReadyTally.of(rules, state, have) if wish.value is None else None
    if state.phase is Phase.REDUCE:
        ends_at = _note_results(rules, state, view, now)
        wish = while_reducing(rules, state, view, now)
        if view.failed_since is None and wish.look_again_at is None and ends_at < math.inf:
            wish = replace(wish, look_again_at=ends_at)
        return wish, tally_of_reduce(state, view, wish)
    return what_to_propose(rules, state, view, now), None


def _note_enough(rules: Rules, state: LedgerState, view: View, have: Readiness, now: float) -> None:
    if not have.enough:
        view.enough_since = None
    elif view.enough_since is None:
        view.enough_since = now
        view.grace_s = grace_after(view.lags, rules.grace_s)
        if view.quorum_at is None or view.quorum_at[0] != state.step:
            view.quorum_at = (state.step, now)
            assert view.gathering_since is not None
            view.credit.earn(now - view.gathering_since, rules.grace_s)
    if have.enough and have.awaited and not have.punctual:
        view.credit.spend()


def _note_results(rules: Rules, state: LedgerState, view: View, now: float) -> float:
    """Note results and failures. Return when the reduce counts as failed even without a report: all
    of its participants may be liars that are up but silent, so that no honest participant abandons
    it.
    """
    if view.reducing_since is None:
        view.reducing_since = now
    ends_at = view.reducing_since + rules.reduce_s
    if view.failed_since is None and (
        now >= ends_at or failure_known(state, view) or alone_too_long(rules, state, view, now)
    ):
        view.failed_since = now
    if view.done_since is None and finished_update(state, view) is not None:
        view.done_since = now
    return ends_at

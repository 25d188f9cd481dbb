"""The policy of one height's consensus: what to propose, what to accept, which peers have an
update, and which are down.

The wish (`what_to_propose`) is a pure function of rules, state, reports, and time. It always has a
reason in words, and names the peers it waits for; people read it in the status. Grace and patience
count from times noted in the reports (`Reports.enough_since` and the like), so this module needs no
clock and no memory.

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
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.wish import Wish


@dataclass(slots=True)
class Policy:
    rules: Rules
    state: LedgerState
    reports: Reports
    arrange: Arrange
    wish: Wish
    tally: Tally | None

    @staticmethod
    def of(
        rules: Rules, state: LedgerState, reports: Reports, arrange: Arrange, now: float
    ) -> Policy:
        wish, tally = reconsider(rules, state, reports, now)
        return Policy(rules, state, reports, arrange, wish, tally)

    @property
    def wanted(self) -> Value | None:
        return self.wish.value

    @property
    def down(self) -> AbstractSet[PeerId]:
        return self.reports.down

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
        return amended(arranged(value, self.arrange), self.state.terms, self.reports.terms)

    def causes(self, value: Value) -> tuple[Evidence, ...]:
        """Return the evidence that justifies taking votes from founders in `value`. Voters do not
        vote for such a roster without it (SPEC.md F3), and its announcement may have been lost.
        """
        if self.reports.founders is None or not isinstance(value, Roster):
            return ()
        dropped = set(self.state.voters).difference(value.voters)
        return tuple(it for peer, it in self.reports.accused.items() if peer in dropped)

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
        known = (self.rules, self.state, self.reports, value, now)
        return accept.may_accept(
            *known, forced=forced, doubtful=doubtful, late=late, proposer=proposer
        )

    def holders(self, update: Digest, proposer: PeerId) -> tuple[PeerId, ...]:
        return accept.holders_of(self.state, self.reports, update, proposer)


def what_to_propose(rules: Rules, state: LedgerState, reports: Reports, now: float) -> Wish:
    """Return the value that this node would propose now, or what it waits for."""
    if state.phase is Phase.HEALED:
        return Wish(None, "this branch has healed; looking for the chain to follow")
    if reports.outranked_by is not None and state.past:
        rival_entry = reports.outranked_by
        heal = Heal(state.step, rival_entry.height, rival_entry.digest)
        return Wish(heal, "a chain that outranks this branch was found")
    if state.phase is Phase.GATHER:
        have = participants.readiness(rules, state, reports)
        return while_gathering(rules, state, reports, have, now)
    if state.phase is Phase.REDUCE:
        return while_reducing(rules, state, reports, now)
    return Wish(None, "the run has ended")


def reconsider(
    rules: Rules, state: LedgerState, reports: Reports, now: float
) -> tuple[Wish, Tally | None]:
    """Note in `reports` when there was first enough, a failure, or a result, since waiting counts
    from there. Return what to propose, and a tally that recognises reports that cannot change it.
    """
    if reports.outranked_by is not None:
        return what_to_propose(rules, state, reports, now), None
    if state.phase is Phase.GATHER:
        if reports.gathering_since is None:
            reports.gathering_since = now
        have = participants.readiness(rules, state, reports)
        _note_enough(rules, state, reports, have, now)
        wish = while_gathering(rules, state, reports, have, now)
        return wish, ReadyTally.of(rules, state, have) if wish.value is None else None
    if state.phase is Phase.REDUCE:
        ends_at = _note_results(rules, state, reports, now)
        wish = while_reducing(rules, state, reports, now)
        if reports.failed_since is None and wish.look_again_at is None and ends_at < math.inf:
            wish = replace(wish, look_again_at=ends_at)
        return wish, tally_of_reduce(state, reports, wish)
    return what_to_propose(rules, state, reports, now), None


def _note_enough(
    rules: Rules, state: LedgerState, reports: Reports, have: Readiness, now: float
) -> None:
    if not have.enough:
        reports.enough_since = None
    elif reports.enough_since is None:
        reports.enough_since = now
        reports.grace_s = grace_after(reports.lags, rules.grace_s)
        if reports.quorum_at is None or reports.quorum_at[0] != state.step:
            reports.quorum_at = (state.step, now)
            assert reports.gathering_since is not None
            reports.credit.earn(now - reports.gathering_since, rules.grace_s)
    if have.enough and have.awaited and not have.punctual:
        reports.credit.spend()


def _note_results(rules: Rules, state: LedgerState, reports: Reports, now: float) -> float:
    """Note results and failures. Return when the reduce counts as failed even without a report: all
    of its participants may be liars that are up but silent, so that no honest participant abandons
    it.
    """
    if reports.reducing_since is None:
        reports.reducing_since = now
    ends_at = reports.reducing_since + rules.reduce_s
    if reports.failed_since is None and (
        now >= ends_at
        or failure_known(state, reports)
        or alone_too_long(rules, state, reports, now)
    ):
        reports.failed_since = now
    if reports.done_since is None and finished_update(state, reports) is not None:
        reports.done_since = now
    return ends_at

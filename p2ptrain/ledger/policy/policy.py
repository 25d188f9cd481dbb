"""Answer what consensus asks at one height: what to propose, what to accept, and which peers are
down or have an update.

A `Wish` says what this node would propose now, or why it waits. It is a pure function of the rules,
the state, the reports and the time. Waiting periods start at times that `Reports` stores (for
example `enough_since`), so this module needs neither a clock nor state of its own.
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
from p2ptrain.ledger.policy.auditing import with_auditors
from p2ptrain.ledger.policy.close_reduce import while_reducing
from p2ptrain.ledger.policy.grace import grace_after
from p2ptrain.ledger.policy.incremental import ReadyTally, Tally, tally_of_reduce
from p2ptrain.ledger.policy.membership import disarming
from p2ptrain.ledger.policy.open_reduce import while_gathering
from p2ptrain.ledger.policy.participants import Readiness
from p2ptrain.ledger.policy.reduce_order import Arrange, arranged
from p2ptrain.ledger.policy.reduce_results import alone_too_long, failure_known, finished_update
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.wish import Wish


@dataclass(slots=True)
class Policy:
    """The policy of one height. Its wish is valid until a report arrives that may change it (see
    `absorbs`), or until the time `wish.look_again_at`.
    """

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
        """Count a new report. Return whether the wish is certain to stay the same."""
        return self.tally is not None and self.tally.absorbs(event)

    def holds(self, now: float) -> bool:
        """Return whether the wish is still valid at `now`, if no report arrived meanwhile."""
        look_at = self.wish.look_again_at
        return look_at is None or now < look_at

    def complete(self, value: Value) -> Value:
        state, reports = self.state, self.reports
        known = [
            each for each in reports.terms if not disarming(reports.founders, state, reports, each)
        ]
        value = amended(arranged(value, self.arrange), state.terms, known)
        return with_auditors(self.rules, state, reports, value)

    def causes(self, value: Value) -> tuple[Evidence, ...]:
        """Return the evidence against the founders that the roster `value` would deprive of their
        votes. Voters that lack this evidence do not vote for the roster (SPEC.md F2, F3). They may
        have missed its announcement, so the proposer sends it along.
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
    """Return what this node would propose now, or why it waits and for which peers."""
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
    """Return what to propose, and a tally that recognises reports that cannot change this.

    Record in `reports` when enough members were first ready, and when a failure or a result was
    first known, because waiting periods start at these times.
    """
    if reports.outranked_by is not None:
        return what_to_propose(rules, state, reports, now), None
    if state.phase is Phase.GATHER:
        if reports.gathering_since is None:
            reports.gathering_since = now
        have = participants.readiness(rules, state, reports)
        _note_enough(rules, state, reports, have, now)
        wish = while_gathering(rules, state, reports, have, now)
        countable = wish.value is None and not state.excluded
        return wish, ReadyTally.of(rules, state, have) if countable else None
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
    """Record when a result and a failure of the current reduce were first known. Return the time at
    which the reduce counts as failed even if no report arrives. Without this limit, a reduce whose
    participants are all silent liars would never end.
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

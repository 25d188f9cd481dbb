"""During a reduce: decide whether to commit its result, try again, or skip the outer step.

- Commit if most participants computed the same update and its bytes are available. Also commit if
  this node computed an update, and most participants may still report that they computed it too.
- Start the next attempt, without the peers to blame, if the reduce has failed and all participants
  that are up reported this, or `patience_s` has passed. Also start it if the bytes of the result
  remain unavailable.
- Skip the outer step if its attempts are used up, or too few peers remain.
"""

from __future__ import annotations

from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Skip
from p2ptrain.ledger.policy.membership import roster_to_open
from p2ptrain.ledger.policy.participants import survivors
from p2ptrain.ledger.policy.reduce_results import (
    alone_until,
    failed,
    finished_update,
    result_is_stale,
)
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.snapshot_votes import snapshot_to_name
from p2ptrain.ledger.policy.wish import Wish


def while_reducing(rules: Rules, state: LedgerState, reports: Reports, now: float) -> Wish:
    update = finished_update(state, reports)
    if update is not None and (update in reports.held or not result_is_stale(rules, reports, now)):
        return _commit(rules, state, reports, update)
    if update is not None:
        return _again(rules, state, reports, now, "no peer can provide its result")
    roster = state.roster
    assert roster is not None
    live = [peer for peer in roster.peers if peer not in reports.down]
    silent = tuple(peer for peer in live if not failed(state, reports, peer))
    if reports.failed_since is None:
        until = alone_until(rules, state, reports)
        return Wish(None, "an exchange is in progress", silent, until)
    patient_until = reports.failed_since + rules.patience_s
    if silent and now < patient_until:
        return Wish(
            None,
            "an exchange failed; waiting for the other participants' reports",
            silent,
            patient_until,
        )
    return _again(rules, state, reports, now, "it failed")


def _commit(rules: Rules, state: LedgerState, reports: Reports, update: Digest) -> Wish:
    roster = state.roster
    assert roster is not None
    snapshot = snapshot_to_name(rules, state, reports)
    named = None if snapshot is None else state.digest
    value = Commit(state.step, roster.attempt, update, snapshot, named)
    reason = f"the exchange of outer step {state.step} is done"
    if update in reports.held or reports.done_since is None:
        return Wish(value, reason)
    return Wish(value, reason, look_again_at=reports.done_since + rules.grace_s)


def _again(rules: Rules, state: LedgerState, reports: Reports, now: float, why: str) -> Wish:
    if state.tries >= rules.attempts_max:
        return Wish(Skip(state.step), f"all {rules.attempts_max} attempts failed")
    able = survivors(rules, state, reports)
    if len(able) >= rules.participants_min:
        return roster_to_open(state, reports, able, f"attempt {state.attempt - 1}: {why}", now)
    until = now if reports.failed_since is None else reports.failed_since + rules.grace_s
    if now < until:
        return Wish(None, "too few are left to try again", look_again_at=until)
    return Wish(Skip(state.step), "too few are left to try again")

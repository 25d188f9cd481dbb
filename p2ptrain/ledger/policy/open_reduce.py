"""While members train: decide when to open a reduce, when only to change the membership, and when
to wait.

- All members that the others wait for are ready: open a reduce.
- A quorum is ready, there are enough contributors, and the grace period is over: open a reduce
  without the others, which remain members.
- Auditors have judged a claim: propose a verdict.
- A peer asks to join, or a member has to leave: propose a roster without participants.
"""

from __future__ import annotations

from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.ledger.policy import membership
from p2ptrain.ledger.policy.auditing import verdict_due
from p2ptrain.ledger.policy.participants import Readiness, first_participants
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.rest import rests_until
from p2ptrain.ledger.policy.wish import Wish


def while_gathering(
    rules: Rules, state: LedgerState, reports: Reports, have: Readiness, now: float
) -> Wish:
    if rules.audits and (verdict := verdict_due(state, reports)) is not None:
        return verdict
    grace_s = _grace_s(rules, reports, have)
    rest_until = rests_until(rules, reports)
    if len(have.contributors) >= rules.participants_min and now >= rest_until:
        chosen = first_participants(rules, have)
        if not have.awaited:
            return membership.roster_to_open(state, reports, chosen, "all members are ready", now)
        if reports.enough_since is not None and now >= reports.enough_since + grace_s:
            reason = f"a quorum was ready {grace_s:.3g} s ago; starting without the others"
            return membership.roster_to_open(state, reports, chosen, reason, now)
    changed = _membership_only(state, reports)
    if changed is not None:
        return changed
    if now < rest_until:
        reason = f"waiting before the next attempt, since {reports.skips} outer steps were skipped"
        return Wish(None, reason, have.awaited, rest_until)
    if reports.enough_since is not None:
        until = reports.enough_since + grace_s
        return Wish(
            None,
            "a quorum is ready; waiting for the others until the grace period is over",
            have.awaited,
            until,
        )
    if len(have.contributors) < rules.participants_min and not have.awaited:
        lacking = rules.participants_min - len(have.contributors)
        return Wish(None, f"{lacking} more participant{'s' * (lacking != 1)} needed")
    return Wish(None, "members are still training", have.awaited)


def _grace_s(rules: Rules, reports: Reports, have: Readiness) -> float:
    """Return how long a ready quorum waits for the members that are still awaited."""
    grace_s = rules.grace_s if reports.grace_s is None else reports.grace_s
    return grace_s if have.punctual else min(grace_s, reports.credit.grace_s)


def _membership_only(state: LedgerState, reports: Reports) -> Wish | None:
    """Return a roster without participants that admits peers that ask to join, and drops members
    that leave, are accused or are no longer allowed; None if there is nothing to change.

    A leaving voter is dropped now, because the others may need its vote to agree on this. A leaving
    learner is dropped so that it can come back. While it is a leaving member, the others do not
    wait for it, and its request to join has no effect.
    """
    leavers = [peer for peer in state.members if not reports.stays(peer)]
    if not leavers and not reports.joining:
        return None
    members = membership.next_members(state, reports, frozenset())
    if members is None:
        return None
    after = {*members[0], *members[1]}
    joiners = [peer for peer in after if not state.is_member(peer)]
    leavers = [peer for peer in state.members if peer not in after]
    if not joiners and not leavers:
        return None
    reason = f"{len(joiners)} join, {len(leavers)} leave"
    return Wish(Roster(state.step, state.attempt, *members), reason)

"""Derive from reports what the current reduce computed, and whether it failed."""

from __future__ import annotations

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.update_votes import UpdateVotes

ALONE_GRACES = 4
"""If a reduce has only one participant and that one reports nothing, it counts as failed after this
many times grace_s. Such a reduce does not use the network, so it needs little time, and no other
participant could report the failure.
"""


def finished_update(state: LedgerState, reports: Reports) -> Digest | None:
    """Return the update that the current reduce computed, if it is known and its bytes are
    available.

    Most participants report that they computed it; or this node did, and it is still possible that
    most will report it. A minority of participants is not believed (SPEC.md S12).
    """
    assert state.roster is not None
    votes = update_votes_of(state, reports)
    update = votes.agreed()
    if update is None:
        own = made_by(state, reports, reports.me)
        return own if own is not None and votes.may_agree(own) else None
    live = (peer for peer in state.roster.peers if peer not in reports.down)
    can_be_had = update in reports.held or any(
        made_by(state, reports, peer) == update for peer in live
    )
    return update if can_be_had else None


def is_made(state: LedgerState, reports: Reports, update: Digest) -> bool:
    """Return whether this node, or most participants, computed `update` in the current reduce."""
    return update in (made_by(state, reports, reports.me), update_votes_of(state, reports).agreed())


def made_by(state: LedgerState, reports: Reports, peer: PeerId) -> Digest | None:
    """Return the update that `peer` reports for the current reduce, if any."""
    report, roster = reports.done.get(peer), state.roster
    assert roster is not None
    if report is None or (report.step, report.attempt) != (state.step, roster.attempt):
        return None
    return report.update


def update_votes_of(state: LedgerState, reports: Reports) -> UpdateVotes:
    """Count the updates that participants report, even if they have gone down since then."""
    assert state.roster is not None
    votes = UpdateVotes(len(state.roster.peers))
    for peer in state.roster.peers:
        update = made_by(state, reports, peer)
        if update is not None:
            votes.add(peer, update)
        elif peer not in reports.down and not failed(state, reports, peer):
            votes.open.add(peer)
    return votes


def result_is_stale(rules: Rules, reports: Reports, now: float) -> bool:
    """Return whether a result has been known for grace_s without being committed. Then its bytes
    are evidently not available to a quorum, so another attempt is better than to wait for them.
    """
    return reports.done_since is not None and now >= reports.done_since + rules.grace_s


def failed(state: LedgerState, reports: Reports, peer: PeerId) -> bool:
    """Return whether `peer` reported that it abandoned the current reduce."""
    report, roster = reports.failed.get(peer), state.roster
    assert roster is not None
    return report is not None and (report.step, report.attempt) == (state.step, roster.attempt)


def confessed(state: LedgerState, reports: Reports) -> tuple[PeerId, ...]:
    """Return the participants of the current reduce that report that their own work is lost."""
    assert state.roster is not None
    said = reports.accusations(state.roster)
    return tuple(peer for peer, suspects in said.items() if peer in suspects)


def failure_known(state: LedgerState, reports: Reports) -> bool:
    """Return whether the reduce is known to have failed: a participant that is up abandoned it, all
    are down, or it is no longer possible that most of them computed the same update.
    """
    assert state.roster is not None
    live = [peer for peer in state.roster.peers if peer not in reports.down]
    gave_up = any(failed(state, reports, peer) for peer in live)
    return not live or gave_up or update_votes_of(state, reports).lost


def alone_too_long(rules: Rules, state: LedgerState, reports: Reports, now: float) -> bool:
    """Return whether the reduce has one participant, not this node, and its report is overdue."""
    return (until := alone_until(rules, state, reports)) is not None and now >= until


def alone_until(rules: Rules, state: LedgerState, reports: Reports) -> float | None:
    """Return the time at which the only participant counts as failed. Return None if it is this
    node, or if there are several participants."""
    roster, since = state.roster, reports.reducing_since
    assert roster is not None
    if since is None or len(roster.peers) > 1 or roster.peers[0] == reports.me:
        return None
    return since + ALONE_GRACES * rules.grace_s

"""Choose the next members, and recognise rosters that a voter of an open run refuses. In an open
run only founders vote.

A founder keeps its vote while it is down: no statement of others takes it away. It loses its vote
by its own goodbye, once it is down and if enough voters remain, or by evidence that it lied. A
founder that comes back after a goodbye asks to join and is a voter again with the roster that
admits it. The manifest says who it is, so it need not prove itself by training, and seeds that
train nothing come back as well.

All functions use the chain and the reports that this node has heard (`Reports`). Rules: SPEC.md, F2
to F4.
"""

from __future__ import annotations

from collections.abc import Set

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.founders import Founders
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import MEMBERS_MAX, Participant, Roster
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.wish import Wish

Members = tuple[tuple[PeerId, ...], tuple[PeerId, ...]]
"""Voters, ranked, and learners."""


def roster_to_open(
    state: LedgerState,
    reports: Reports,
    contributors: tuple[Participant, ...],
    reason: str,
    now: float,
) -> Wish:
    members = next_members(state, reports, reports.long_down(now))
    if members is None:
        return Wish(None, "all voters are leaving or down")
    voters, learners = members
    return Wish(Roster(state.step, state.attempt, voters, learners, contributors), reason)


def next_members(state: LedgerState, reports: Reports, gone: Set[PeerId]) -> Members | None:
    """Return voters and learners of the next roster; None if no voter would stay. `gone` are
    members that have been down for long, and lose their places.

    A learner who took part in a committed update becomes a voter. There are never more new voters
    than voters that stay, and none while one of those is down: newcomers who vanish must not cost
    the others their quorum. In an open run only founders vote.
    """
    if reports.founders is not None:
        return _next_in_open_run(reports.founders, state, reports, gone)

    def remains(peer: PeerId) -> bool:
        return reports.stays(peer) and peer not in gone

    kept = tuple(voter for voter in state.voters if remains(voter))
    if not kept:
        return None
    learners = [learner for learner in state.learners if remains(learner)]
    fit = [peer for peer in learners if peer in state.proven and peer not in reports.down]
    promoted = dict.fromkeys(fit[: len(kept)] if reports.down.isdisjoint(kept) else ())
    places = MEMBERS_MAX - len(kept) - len(learners)
    joiners = [
        peer for peer in reports.joining if not state.is_member(peer) and _admits(reports, peer)
    ]
    stay_learners = [learner for learner in learners if learner not in promoted]
    return (*kept, *promoted), (*stay_learners, *joiners[:places])


def _admits(reports: Reports, peer: PeerId) -> bool:
    return reports.stays(peer) and peer not in reports.down


def _next_in_open_run(
    founders: Founders, state: LedgerState, reports: Reports, gone: Set[PeerId]
) -> Members | None:
    """Voters and learners of the next roster; None if there is evidence against every voter.

    `gone` are members that have been down for long. Only learners lose their place for that.
    """
    voters = _next_voters(founders, state, reports)
    if voters is None:
        return None
    learners = [peer for peer in state.learners if reports.stays(peer) and peer not in gone]
    joiners = [peer for peer in _asking(state, reports) if peer not in founders.names]
    places = max(0, founders.learners_max - len(learners))
    return voters, (*learners, *joiners[:places])


def _next_voters(
    founders: Founders, state: LedgerState, reports: Reports
) -> tuple[PeerId, ...] | None:
    """Return the present voters, without the accused and without as many of the leaving ones as may
    go, the last ranked first. Founders that come back follow, never more than the voters that stay.
    """
    staying = [voter for voter in state.voters if voter not in reports.accused]
    if not staying:
        return None
    back = [peer for peer in _asking(state, reports) if peer in founders.names]
    least = _least(founders, state) - (len(state.voters) - len(staying))
    may_go = max(0, len(staying) + min(len(back), len(staying)) - max(1, least))
    leaving = [voter for voter in staying if has_left(founders, reports, voter)]
    gone = set(leaving[len(leaving) - may_go :] if may_go < len(leaving) else leaving)
    kept = tuple(voter for voter in staying if voter not in gone)
    if len(kept) + min(len(back), len(kept)) < least or not kept:
        kept = tuple(staying)
    return (*kept, *back[: len(kept)])


def _asking(state: LedgerState, reports: Reports) -> list[PeerId]:
    return [
        peer
        for peer in reports.joining
        if not state.is_member(peer) and reports.stays(peer) and peer not in reports.down
    ]


def _least(founders: Founders, state: LedgerState) -> int:
    """Return how many voters the next roster has at least, the accused included."""
    return min(founders.voters_min, len(state.voters))


def has_left(founders: Founders, reports: Reports, voter: PeerId) -> bool:
    """Return whether the goodbye of `voter` counts. In a run with enough founders, nobody needs the
    vote of `voter` to agree on a roster without it. So there the goodbye counts only once the voter
    is down as well: a voter that is up may have come back, and somebody may be sending its old
    goodbye again.
    """
    return voter in reports.leaving and (founders.voters_min == 1 or voter in reports.down)


def keeps_its_vote(founders: Founders | None, state: LedgerState, peer: PeerId) -> bool:
    """Return whether `peer`, a voter that says goodbye, stays a voter as long as it is up. Then it
    need not wait for a roster without it.
    """
    return founders is not None and (founders.voters_min > 1 or state.voters == (peer,))


def too_few_left(founders: Founders, state: LedgerState, reports: Reports, roster: Roster) -> str:
    """Return in words why `roster` leaves too few voters (SPEC.md F3); empty if it leaves enough.

    This holds for every roster, also for one that the promises force, however long the height has
    waited. That does no harm: a voter that voted for fewer voters had evidence, which is durable
    and is passed on to others.
    """
    names = set(roster.voters)
    guilty = sum(1 for voter in state.voters if voter not in names and voter in reports.accused)
    if len(roster.voters) + guilty >= _least(founders, state):
        return ""
    return f"it leaves {len(roster.voters)} voters, and the loss of one more would stop the run"


def dropped_for_nothing(
    founders: Founders, state: LedgerState, reports: Reports, roster: Roster
) -> str:
    """Return in words which founder loses its vote by `roster` without a cause (SPEC.md F2); empty
    if none. It is no cause that a founder is down, or that others say it failed.
    """
    names = set(roster.voters)
    for voter in state.voters:
        if voter in names or voter in reports.accused:
            continue
        if not has_left(founders, reports, voter):
            return f"it takes the vote of {voter}, which has not left"
    return ""


def unasked(state: LedgerState, reports: Reports, roster: Roster) -> str:
    """Return in words which founder `roster` makes a voter although it did not ask (SPEC.md F4);
    empty if none.
    """
    for voter in roster.voters:
        if voter not in state.voters and voter not in reports.joining:
            return f"{voter} would be a voter, but this node has not heard it ask"
    return ""

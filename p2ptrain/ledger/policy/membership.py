"""Choose the next members. In open runs, also find out why a voter has to refuse a roster.

In an open run, only founders vote (SPEC.md, F2 to F4). A founder keeps its vote while it is down,
no matter what other peers say. It loses its vote if there is evidence that it lied, or if it said
goodbye, is down, and enough voters remain. A founder that comes back after a goodbye asks to join,
and is a voter again once a roster admits it. The manifest names it, so it does not have to train
first. So a seed, which does not train, can come back too.
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
"""Voters in rank order, and learners."""


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
    """Return the voters and learners of the next roster; None if no voter would remain. `gone` are
    members that are down and lose their places.

    A learner that took part in a committed update becomes a voter. There are never more new voters
    than remaining ones, and none while a remaining voter is down: newcomers that vanish must not
    cost the others their quorum. In an open run, only founders vote.
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
    stay_learners = [learner for learner in learners if learner not in promoted]
    return (*kept, *promoted), (*stay_learners, *_asking(state, reports)[:places])


def _next_in_open_run(
    founders: Founders, state: LedgerState, reports: Reports, gone: Set[PeerId]
) -> Members | None:
    """Return the voters and learners of the next roster; None if there is evidence against every
    voter. `gone` are members that are down; of these, only learners lose their places.
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
    """Return the voters of the next roster: the current ones without the accused, and without as
    many of the leaving ones as may go, the lowest-ranked first. Returning founders are appended, at
    most as many as voters remain.
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
    """Return the peers that ask to join, are up, and may be members."""
    return [
        peer
        for peer in reports.joining
        if not state.is_member(peer) and reports.stays(peer) and peer not in reports.down
    ]


def _least(founders: Founders, state: LedgerState) -> int:
    """Return the minimum for the voters of the next roster and the accused that it drops."""
    return min(founders.voters_min, len(state.voters))


def has_left(founders: Founders, reports: Reports, voter: PeerId) -> bool:
    """Return whether `voter` said goodbye, and the others may drop it for this reason.

    In a run with enough founders, they may drop it only once it is also down. A voter that is up
    may have come back, while another peer repeats its old goodbye. In a run with fewer founders,
    the others may need the vote of `voter` to agree on a roster without it, and so cannot wait.
    """
    return voter in reports.leaving and (founders.voters_min == 1 or voter in reports.down)


def keeps_its_vote(founders: Founders | None, state: LedgerState, peer: PeerId) -> bool:
    """Return whether `peer`, a voter that says goodbye, remains a voter as long as it is up. If so,
    it need not wait for a roster without it before it stops.
    """
    return founders is not None and (founders.voters_min > 1 or state.voters == (peer,))


def too_few_left(founders: Founders, state: LedgerState, reports: Reports, roster: Roster) -> str:
    """Return the reason why `roster` leaves too few voters (SPEC.md F3); empty if it leaves enough.

    This applies to every roster, even to one that the promises force, however long the height has
    been undecided. That does not block the run: a voter that accepted a roster with fewer voters
    has evidence against the dropped ones, stores it durably, and sends it to the others.
    """
    names = set(roster.voters)
    guilty = sum(1 for voter in state.voters if voter not in names and voter in reports.accused)
    if len(roster.voters) + guilty >= _least(founders, state):
        return ""
    return f"it leaves {len(roster.voters)} voters; losing one more would stop the run"


def dropped_for_nothing(
    founders: Founders, state: LedgerState, reports: Reports, roster: Roster
) -> str:
    """Say which founder loses its vote in `roster` without a valid reason (SPEC.md F2); empty if
    none does. That a founder is down, or that other peers accuse it, is not a valid reason.
    """
    names = set(roster.voters)
    for voter in state.voters:
        if voter in names or voter in reports.accused:
            continue
        if not has_left(founders, reports, voter):
            return f"it takes the vote from {voter}, which has not left"
    return ""


def unasked(state: LedgerState, reports: Reports, roster: Roster) -> str:
    """Say which founder `roster` makes a voter that did not ask (SPEC.md F4); empty if none."""
    for voter in roster.voters:
        if voter not in state.voters and voter not in reports.joining:
            return f"it makes {voter} a voter, but this node has not heard it ask to join"
    return ""

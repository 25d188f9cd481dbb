"""Choose the next members. In open runs, also find out why a voter has to refuse a roster.

In an open run, only founders and delegates vote (SPEC.md, F2 to F4, F6, F7). A voter keeps its vote
while it is down, no matter what other peers say. It loses its vote if there is evidence that it
lied, if its delegated vote was revoked, or if it is down, enough voters remain, and it said
goodbye. If delegates can take its place, being down for long is as good as a goodbye. A founder
that comes back asks to join, and is a voter again once a roster admits it. The manifest names it,
so it does not have to train first. So a seed, which does not train, can come back too. A delegate
takes part in a committed update before it votes.
"""

from __future__ import annotations

from collections.abc import Set

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.founders import Founders
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import MEMBERS_MAX, Participant, Roster, Terms
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.wish import Wish

Members = tuple[tuple[PeerId, ...], tuple[PeerId, ...]]
"""Voters in rank order, and learners."""

NOTICED = 0.5
"""A voter agrees to drop an absent peer after this part of the time for which a proposer waits. The
voter may have noticed the absence later, or may have restarted since.
"""


def roster_to_open(
    state: LedgerState,
    reports: Reports,
    contributors: tuple[Participant, ...],
    reason: str,
    now: float,
) -> Wish:
    members = next_members(state, reports, reports.long_down(now), absent(reports, now))
    if members is None:
        return Wish(None, "all voters are leaving or down")
    voters, learners = members
    return Wish(Roster(state.step, state.attempt, voters, learners, contributors), reason)


def next_members(
    state: LedgerState,
    reports: Reports,
    gone: Set[PeerId],
    absent: Set[PeerId] = frozenset(),
) -> Members | None:
    """Return the voters and learners of the next roster; None if no voter would remain. `gone` are
    members that are down and lose their places. In an open run, `absent` are the peers that have
    been down for so long that they may lose their votes.

    A learner that took part in a committed update becomes a voter. There are never more new voters
    than remaining ones, and none while a remaining voter is down: newcomers that vanish must not
    cost the others their quorum. In an open run, only founders and delegates vote.
    """
    if reports.founders is not None:
        return _next_in_open_run(reports.founders, state, reports, gone, absent)

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
    founders: Founders,
    state: LedgerState,
    reports: Reports,
    gone: Set[PeerId],
    absent: Set[PeerId],
) -> Members | None:
    """Return the voters and learners of the next roster; None if there is evidence against every
    voter. `gone` are members that are down; of these, only learners lose their places.
    """
    voters = _next_voters(founders, state, reports, absent)
    if voters is None:
        return None
    revoked = [peer for peer in state.voters if not founders.may_vote(peer)]
    learners = [
        peer
        for peer in (*state.learners, *revoked)
        if peer not in voters and reports.stays(peer) and peer not in gone
    ]
    return voters, (*learners, *_admitted(founders, state, reports, {*voters, *learners}))


def _admitted(
    founders: Founders, state: LedgerState, reports: Reports, members: set[PeerId]
) -> list[PeerId]:
    """Return the peers that are admitted as learners beside `members`. A place is kept for each
    delegate that is away.
    """
    joiners = [peer for peer in _asking(state, reports) if peer not in founders.names]
    named = [peer for peer in joiners if peer in founders.delegates]
    others = [peer for peer in joiners if peer not in founders.delegates]
    places = max(0, founders.learners_max - len(members - founders.names))
    kept = len(founders.delegates - members)
    return [*named[:places], *others[: max(0, places - kept)]]


def _next_voters(
    founders: Founders, state: LedgerState, reports: Reports, absent: Set[PeerId]
) -> tuple[PeerId, ...] | None:
    """Return the voters of the next roster: the current ones without the accused, the revoked, and
    as many of the others that may go as leave enough voters, the lowest-ranked first. Returning
    founders and proven delegates are appended, at most as many as voters remain.
    """
    staying = [voter for voter in state.voters if voter not in reports.accused]
    if not staying:
        return None
    new = _new_voters(founders, state, reports)
    away = [voter for voter in staying if may_go(founders, reports, voter, absent)]
    for count in range(len(away), 0, -1):
        gone = set(away[len(away) - count :])
        remaining = [voter for voter in staying if voter not in gone]
        voters = _with_new(founders, state, reports, remaining, new)
        enough = len(voters) >= founders.replacing_min or gone <= reports.leaving
        if voters and enough and not _lack(founders, state, reports, voters):
            return voters
    return _with_new(founders, state, reports, staying, new)


def _new_voters(founders: Founders, state: LedgerState, reports: Reports) -> list[PeerId]:
    """Return the peers that may become voters: founders that ask, and then proven delegates."""
    back = [peer for peer in _asking(state, reports) if peer in founders.names]
    proven = [
        peer
        for peer in state.learners
        if peer in founders.delegates and peer in state.proven and reports.stays(peer)
    ]
    return [*back, *(peer for peer in proven if peer not in reports.down)]


def _with_new(
    founders: Founders,
    state: LedgerState,
    reports: Reports,
    remaining: list[PeerId],
    new: list[PeerId],
) -> tuple[PeerId, ...]:
    """Return the voters in `remaining`, without the revoked ones that can be spared, and as many of
    the `new` ones as may be added.
    """
    for count in range(len(new), 0, -1):
        added = new[:count]
        kept = _without_revoked(founders, state, remaining, added)
        if len(added) <= len(kept) and is_safe(founders, reports, kept, added):
            return (*kept, *added)
    return tuple(_without_revoked(founders, state, remaining, []))


def _without_revoked(
    founders: Founders, state: LedgerState, voters: list[PeerId], added: list[PeerId]
) -> list[PeerId]:
    """Return `voters` without the revoked ones, except those that may stay because too few others
    would remain beside the new voters in `added`.
    """
    revoked = [voter for voter in voters if not founders.may_vote(voter)]
    gone = set(revoked[founders.lingering((*state.voters, *added)) :])
    return [voter for voter in voters if voter not in gone]


def is_safe(founders: Founders, reports: Reports, kept: list[PeerId], added: list[PeerId]) -> bool:
    """Return whether the voters that are up remain a quorum if all new delegates in `added` vanish.
    A founder that comes back does not count as one that vanishes.
    """
    if all(peer in founders.names for peer in added):
        return True
    voters = (*kept, *added)
    up = {it for it in voters if it not in reports.down and (it in kept or it in founders.names)}
    return quorum.reached(founders.quorum, voters, up)


def _asking(state: LedgerState, reports: Reports) -> list[PeerId]:
    """Return the peers that ask to join, are up, and may be members."""
    return [
        peer
        for peer in reports.joining
        if not state.is_member(peer) and reports.stays(peer) and peer not in reports.down
    ]


def _lack(
    founders: Founders, state: LedgerState, reports: Reports, voters: tuple[PeerId, ...]
) -> bool:
    """Return whether `voters` are too few for the next roster (SPEC.md F3). Accused voters count as
    if they stayed. Revoked ones that go do not count, neither before nor after.
    """
    gone = set(state.voters).difference(voters)
    revoked = sum(1 for voter in gone if not founders.may_vote(voter))
    guilty = sum(1 for voter in gone if voter in reports.accused and founders.may_vote(voter))
    return len(voters) + guilty < min(founders.voters_min, len(state.voters) - revoked)


def absent(reports: Reports, now: float) -> Set[PeerId]:
    """Return the peers that a proposer may drop from an open run because they are down for long. It
    is empty without delegates: nobody is named who could take their places (SPEC.md F7).
    """
    founders = reports.founders
    if founders is None or not founders.delegates:
        return frozenset()
    return reports.down_at_least(founders.absent_s, now)


def has_left(founders: Founders, reports: Reports, voter: PeerId) -> bool:
    """Return whether `voter` said goodbye, and the others may drop it for this reason.

    In a run with enough voters, they may drop it only once it is also down. A voter that is up may
    have come back, while another peer repeats its old goodbye. In a run with fewer voters, the
    others may need the vote of `voter` to agree on a roster without it, and so cannot wait.
    """
    return voter in reports.leaving and (founders.voters_min == 1 or voter in reports.down)


def may_go(founders: Founders, reports: Reports, voter: PeerId, absent: Set[PeerId]) -> bool:
    """Return whether a roster with enough voters may drop `voter`: it left, or is in `absent`."""
    return has_left(founders, reports, voter) or voter in absent


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
    if not _lack(founders, state, reports, roster.voters):
        return ""
    return f"it leaves {len(roster.voters)} voters; losing one more would stop the run"


def dropped_for_nothing(
    founders: Founders, state: LedgerState, reports: Reports, roster: Roster, now: float
) -> str:
    """Say which voter loses its vote in `roster` without a valid reason (SPEC.md F2); empty if none
    does. That a voter is down, or that other peers accuse it, is not a valid reason, unless it has
    been down for long, delegates can take its place, and enough voters remain (SPEC.md F7).
    """
    names, long_down = set(roster.voters), set[PeerId]()
    if founders.delegates and len(names) >= founders.replacing_min:
        long_down = reports.down_at_least(founders.absent_s * NOTICED, now)
    for voter in state.voters:
        if voter in names or voter in reports.accused or not founders.may_vote(voter):
            continue
        if not may_go(founders, reports, voter, long_down):
            return f"it takes the vote from {voter}, which has not left"
    return ""


def unasked(state: LedgerState, reports: Reports, roster: Roster) -> str:
    """Say which peer `roster` makes a voter although this node does not know it to be there: a
    founder that did not ask, or a delegate that is down (SPEC.md F4); empty if none.
    """
    for voter in roster.voters:
        if voter in state.voters:
            continue
        if voter in state.learners:
            if voter in reports.down:
                return f"it makes {voter} a voter, but this node considers that peer down"
        elif voter not in reports.joining:
            return f"it makes {voter} a voter, but this node has not heard it ask to join"
    return ""


def disarming(founders: Founders | None, state: LedgerState, reports: Reports, terms: Terms) -> str:
    """Say why the amendment `terms` would stop the run by its list of delegates (SPEC.md F6); empty
    if it would not. The voters that it lets stay and that are up would not be a quorum.
    """
    if terms.voters is None:
        return ""
    if founders is None:
        return f"amendment {terms.number} delegates votes, but this is not an open run"
    left = [it for it in state.voters if it in founders.names or it in terms.voters]
    up = {voter for voter in left if voter not in reports.down}
    if left and quorum.reached(founders.quorum, left, up):
        return ""
    return f"amendment {terms.number} leaves {len(up)} of {len(left)} voters up: not a quorum"

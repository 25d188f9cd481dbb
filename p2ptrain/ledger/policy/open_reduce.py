"""While members train: decide when to open a reduce, with whom, and when to change membership
alone.

- All awaited members are ready: open now.
- A quorum is ready, contributors are enough, the grace is over: open without the rest, who stay
  members.
- Somebody asks to join, or a voter says goodbye: propose a roster of membership only.

If step after step is skipped, because nobody can average with anybody, each further one waits
longer before it opens. Otherwise a night without a network would use up the outer steps of a run.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import MEMBERS_MAX, Participant, Roster, Value
from p2ptrain.ledger.messages.events import Ready
from p2ptrain.ledger.policy import membership
from p2ptrain.ledger.policy.reports import View

REST_S_MAX = 3600.0
"""Longest wait in seconds after skipped steps. With it a run of 500 outer steps outlasts three
weeks in which nobody can average.
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """The value to propose, or None. `look_again_at` is when to ask again even if no report
    arrives.
    """

    value: Value | None
    reason: str
    waiting_for: tuple[PeerId, ...] = ()
    look_again_at: float | None = None


@dataclass(frozen=True, slots=True)
class Gathered:
    """The members that are ready for the step under way, and whether these are `enough` to go on
    without the rest.

    - `awaited`: members that are up, were members before this step began, and are not ready.
      Founders that were down and have not caught up since are not among them (`View.returned`).
    - `punctual`: those of the awaited that took part in most recent attempts (`grace`).
    - `doubted`: contributors and otherwise awaited members that sit out the first attempt because
      of past failures (`blame`). They may be ready, but are not awaited.
    """

    ready: frozenset[PeerId]
    contributors: tuple[Participant, ...]
    awaited: tuple[PeerId, ...]
    enough: bool
    doubted: frozenset[PeerId] = frozenset()
    punctual: frozenset[PeerId] = frozenset()


def gathered(rules: Rules, state: LedgerState, view: View) -> Gathered:
    """Sort the members into ready and awaited ones. It looks at every member, so callers compute it
    once for each state and each change of the view.
    """
    ready, contributors, awaited = set(), [], []
    for member in state.members:
        if member in view.down:
            continue
        report = view.ready.get(member)
        if report is not None and report.step == state.step:
            ready.add(member)
            if view.stays(member) and fits_lease(rules, state, report):
                contributors.append(Participant(member, report.tokens, report.blocks))
        elif view.stays(member) and is_awaited(state, member) and member not in view.returned:
            awaited.append(member)
    enough = len(contributors) >= rules.participants_min
    enough = enough and quorum.reached(rules.quorum, state.voters, ready)
    doubted = _doubted(rules, view, frozenset((*(each.peer for each in contributors), *awaited)))
    awaited = [peer for peer in awaited if peer not in doubted]
    punctual = frozenset(filter(view.is_punctual, awaited))
    return Gathered(
        frozenset(ready), tuple(contributors), tuple(awaited), enough, doubted, punctual
    )


def _doubted(rules: Rules, view: View, here: frozenset[PeerId]) -> frozenset[PeerId]:
    """Return the peers that sit out the first attempt: at most a third of those who are `here`, but
    one of two or three, so that one liar cannot spoil each step of a small run.
    """
    most = min(max(1, len(here) // 3), len(here) - rules.participants_min)
    return view.blame.sitting_out(here, most)


def openers(rules: Rules, have: Gathered) -> tuple[Participant, ...]:
    """Return the participants of the first attempt: the contributors without the doubted, unless
    too few would be left.
    """
    chosen = tuple(each for each in have.contributors if each.peer not in have.doubted)
    most = len(have.contributors)
    return (
        chosen if len(chosen) >= max(rules.participants_min, (most + 1) // 2) else have.contributors
    )


def is_awaited(state: LedgerState, member: PeerId) -> bool:
    """Return whether others wait for `member`. They do not if it was admitted during this step,
    since it has had less time than the others.
    """
    return state.step == 0 or state.since[member] < state.step


def fits_lease(rules: Rules, state: LedgerState, report: Ready) -> bool:
    """Return whether the ready peer has a contribution, and one that its lease covers."""
    held = len(state.leases.get(report.peer, ()))
    covered = 0 < report.blocks <= held
    return covered and 0 < report.tokens <= report.blocks * rules.tokens_per_block


def while_gathering(
    rules: Rules, state: LedgerState, view: View, have: Gathered, now: float
) -> Wish:
    grace_s = _grace_s(rules, view, have)
    rest_until = rests_until(rules, view)
    if len(have.contributors) >= rules.participants_min and now >= rest_until:
        chosen = openers(rules, have)
        if not have.awaited:
            return opening(state, view, chosen, "all members are ready", now)
        if view.enough_since is not None and now >= view.enough_since + grace_s:
            reason = f"a quorum was ready {grace_s:.3g} s ago; starting without the others"
            return opening(state, view, chosen, reason, now)
    membership = _membership_only(state, view)
    if membership is not None:
        return membership
    if now < rest_until:
        reason = f"the last {view.skips} outer steps were skipped; waiting before the next attempt"
        return Wish(None, reason, have.awaited, rest_until)
    if view.enough_since is not None:
        until = view.enough_since + grace_s
        return Wish(
            None,
            "a quorum is ready; waiting for the others until the grace time is over",
            have.awaited,
            until,
        )
    if len(have.contributors) < rules.participants_min and not have.awaited:
        lacking = rules.participants_min - len(have.contributors)
        return Wish(None, f"{lacking} more participant{'s' * (lacking != 1)} needed")
    return Wish(None, "members are still training", have.awaited)


def _grace_s(rules: Rules, view: View, have: Gathered) -> float:
    """Return how long a ready quorum waits for those that are still awaited."""
    grace_s = rules.grace_s if view.grace_s is None else view.grace_s
    return grace_s if have.punctual else min(grace_s, view.credit.grace_s)


def rests_until(rules: Rules, view: View) -> float:
    """Return the time until which this node opens no reduce. The first skip may be an accident: the
    next step opens at once.
    """
    return _after_rest(rules, view, 1.0)


def rested_at_least_until(rules: Rules, view: View) -> float:
    """Return the time until which a voter refuses a roster that opens a reduce. It is half of the
    proposer's wait, since each node saw a quorum ready at a different time.
    """
    return _after_rest(rules, view, 0.5)


def _after_rest(rules: Rules, view: View, part: float) -> float:
    if view.skips < 2 or view.enough_since is None:
        return -math.inf
    doubled = min(view.skips - 2, 32)  # 2.0**1024 overflows.
    return view.enough_since + part * min(REST_S_MAX, rules.grace_s * 2.0**doubled)


def opening(
    state: LedgerState,
    view: View,
    contributors: tuple[Participant, ...],
    reason: str,
    now: float,
) -> Wish:
    members = next_members(state, view, view.long_down(now))
    if members is None:
        return Wish(None, "all voters are leaving or down")
    voters, learners = members
    return Wish(Roster(state.step, state.attempt, voters, learners, contributors), reason)


def _membership_only(state: LedgerState, view: View) -> Wish | None:
    """Return a roster for peers that ask to join, and for members that say goodbye; None if there
    are none.

    A voter's goodbye is agreed while it can still vote. A learner's goodbye is agreed so that it
    can come back: as long as it is a member and known to leave, nobody counts on it, and it need
    not ask to join.
    """
    leavers = [peer for peer in state.members if not view.stays(peer)]
    if not leavers and not view.joining:
        return None
    members = next_members(state, view, frozenset())
    if members is None:
        return None
    after = {*members[0], *members[1]}
    joiners = [peer for peer in after if not state.is_member(peer)]
    leavers = [peer for peer in state.members if peer not in after]
    if not joiners and not leavers:
        return None
    reason = f"{len(joiners)} join, {len(leavers)} leave"
    return Wish(Roster(state.step, state.attempt, *members), reason)


def next_members(
    state: LedgerState, view: View, gone: Set[PeerId]
) -> tuple[tuple[PeerId, ...], tuple[PeerId, ...]] | None:
    """Return voters and learners of the next roster; None if no voter would stay. `gone` are
    members that have been down for long, and lose their places.

    A learner who took part in a committed update becomes a voter. There are never more new voters
    than voters that stay, and none while one of those is down: newcomers who vanish must not cost
    the others their quorum. In an open run only founders vote: see `membership`.
    """
    if view.founders is not None:
        return membership.next_members(view.founders, state, view, gone)

    def remains(peer: PeerId) -> bool:
        return view.stays(peer) and peer not in gone

    kept = tuple(voter for voter in state.voters if remains(voter))
    if not kept:
        return None
    learners = [learner for learner in state.learners if remains(learner)]
    fit = [peer for peer in learners if peer in state.proven and peer not in view.down]
    promoted = dict.fromkeys(fit[: len(kept)] if view.down.isdisjoint(kept) else ())
    places = MEMBERS_MAX - len(kept) - len(learners)
    joiners = [peer for peer in view.joining if not state.is_member(peer) and _admits(view, peer)]
    stay_learners = [learner for learner in learners if learner not in promoted]
    return (*kept, *promoted), (*stay_learners, *joiners[:places])


def _admits(view: View, peer: PeerId) -> bool:
    return view.stays(peer) and peer not in view.down

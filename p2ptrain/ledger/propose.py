"""What this node would have agreed next: a pure function of rules, state, what it heard, and time.

The answer always has its reason in words, and names whom it waits for; people read it in the
status. Grace and patience are measured from the times that the view noted (`View.enough_since` and
the like), so that nothing here has a clock or a memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger import quorum
from p2ptrain.ledger.events import Ready
from p2ptrain.ledger.rules import Rules
from p2ptrain.ledger.state import LedgerState, Phase
from p2ptrain.ledger.values import (
    MEMBERS_MAX,
    Commit,
    Participant,
    Roster,
    Skip,
    SnapshotRef,
    Value,
)
from p2ptrain.ledger.view import View


@dataclass(frozen=True, slots=True)
class Wish:
    """The value to propose, or None and when to look again even if nothing is heard."""

    value: Value | None
    reason: str
    waiting_for: tuple[PeerId, ...] = ()
    look_again_at: float | None = None


@dataclass(frozen=True, slots=True)
class Gathered:
    """Who is ready for the step under way, and whether that could be enough to go on without the
    rest.

    `awaited` are members that are up, were members before this step began, and are not ready.
    """

    contributors: tuple[Participant, ...]
    awaited: tuple[PeerId, ...]
    enough: bool


def what_to_propose(rules: Rules, state: LedgerState, view: View, now: float) -> Wish:
    match state.phase:
        case Phase.GATHER:
            return _while_gathering(rules, state, view, now)
        case Phase.REDUCE:
            return _while_reducing(rules, state, view, now)
        case Phase.ENDED:
            return Wish(None, "the run has ended")


def gathered(rules: Rules, state: LedgerState, view: View) -> Gathered:
    ready, contributors, awaited = set(), [], []
    for member in state.members:
        report = view.ready.get(member)
        if report is not None and report.step == state.step and member not in view.down:
            ready.add(member)
            if view.stays(member) and fits_lease(rules, state, report):
                contributors.append(Participant(member, report.tokens, report.blocks))
        elif member not in view.down and view.stays(member) and is_awaited(state, member):
            awaited.append(member)
    enough = len(contributors) >= rules.participants_min
    enough = enough and quorum.reached(rules.quorum, state.voters, ready)
    return Gathered(tuple(contributors), tuple(awaited), enough)


def is_awaited(state: LedgerState, member: PeerId) -> bool:
    """Nobody waits for who was admitted in mid step: it has not had the time that the others
    had.
    """
    return state.step == 0 or state.since[member] < state.step


def fits_lease(rules: Rules, state: LedgerState, report: Ready) -> bool:
    """Whether the ready peer has a contribution, and one that its lease covers."""
    held = len(state.leases.get(report.peer, ()))
    covered = 0 < report.blocks <= held
    return covered and 0 < report.tokens <= report.blocks * rules.tokens_per_block


def _while_gathering(rules: Rules, state: LedgerState, view: View, now: float) -> Wish:
    have = gathered(rules, state, view)
    if len(have.contributors) >= rules.participants_min:
        if not have.awaited:
            return _opening(state, view, have.contributors, "all members are ready")
        if view.enough_since is not None and now >= view.enough_since + rules.grace_s:
            reason = f"a quorum was ready {rules.grace_s:g} s ago; going on without the rest"
            return _opening(state, view, have.contributors, reason)
    membership = _membership_only(state, view)
    if membership is not None:
        return membership
    if view.enough_since is not None:
        until = view.enough_since + rules.grace_s
        return Wish(None, "a quorum is ready, the rest has its grace", have.awaited, until)
    if len(have.contributors) < rules.participants_min and not have.awaited:
        lacking = rules.participants_min - len(have.contributors)
        return Wish(None, f"{lacking} more participants are needed")
    return Wish(None, "members still train", have.awaited)


def _opening(
    state: LedgerState, view: View, contributors: tuple[Participant, ...], reason: str
) -> Wish:
    members = next_members(state, view, drop_down=True)
    if members is None:
        return Wish(None, "every voter leaves or is down")
    voters, learners = members
    return Wish(Roster(state.step, state.attempt, voters, learners, contributors), reason)


def _membership_only(state: LedgerState, view: View) -> Wish | None:
    """A roster for who asks to join, and for a voter that says goodbye while it can still vote."""
    members = next_members(state, view, drop_down=False)
    if members is None:
        return None
    joiners = [peer for peer in members[1] if not state.is_member(peer)]
    leavers = [voter for voter in state.voters if voter not in members[0]]
    if not joiners and not leavers:
        return None
    reason = f"{len(joiners)} join, {len(leavers)} leave"
    return Wish(Roster(state.step, state.attempt, *members), reason)


def next_members(
    state: LedgerState, view: View, *, drop_down: bool
) -> tuple[tuple[PeerId, ...], tuple[PeerId, ...]] | None:
    """Voters and learners of the next roster; None if no voter would stay.

    A learner who took part in a committed update becomes a voter, but never more of them than there
    are voters that stay: newcomers who vanish must not cost the others their quorum.
    """

    def remains(peer: PeerId) -> bool:
        return view.stays(peer) and not (drop_down and peer in view.down)

    kept = tuple(voter for voter in state.voters if remains(voter))
    if not kept:
        return None
    learners = [learner for learner in state.learners if remains(learner)]
    fit = [peer for peer in learners if peer in state.proven and peer not in view.down]
    promoted = dict.fromkeys(fit[: len(kept)])
    places = MEMBERS_MAX - len(kept) - len(learners)
    joiners = [peer for peer in view.joining if not state.is_member(peer) and _admits(view, peer)]
    stay_learners = [learner for learner in learners if learner not in promoted]
    return (*kept, *promoted), (*stay_learners, *joiners[:places])


def _admits(view: View, peer: PeerId) -> bool:
    return view.stays(peer) and peer not in view.down


def _while_reducing(rules: Rules, state: LedgerState, view: View, now: float) -> Wish:
    update = finished_update(state, view)
    if update is not None and (update in view.held or not result_is_stale(rules, view, now)):
        return _commit(rules, state, view, update)
    if update is not None:
        return _again(rules, state, view, now, "its result cannot be had")
    roster = state.roster
    assert roster is not None
    live = [peer for peer in roster.peers if peer not in view.down]
    silent = tuple(peer for peer in live if not failed(state, view, peer))
    if view.failed_since is None:
        return Wish(None, "the reduce is under way", silent)
    patient_until = view.failed_since + rules.patience_s
    if silent and now < patient_until:
        return Wish(None, "a reduce failed; hearing the others", silent, patient_until)
    return _again(rules, state, view, now, "it failed")


def finished_update(state: LedgerState, view: View) -> Digest | None:
    """The result of the reduce under way, if it is known and its bytes can be had.

    Participants compute the same bytes. Should one of them be broken, more voices win.
    """
    roster = state.roster
    if roster is None:
        return None
    voices: Counter[Digest] = Counter()
    for peer in roster.peers:
        report = view.done.get(peer)
        if report is None or (report.step, report.attempt) != (state.step, roster.attempt):
            continue
        if peer not in view.down or report.update in view.held:
            voices[report.update] += 1
    if not voices:
        return None
    return min(voices, key=lambda update: (-voices[update], update))


def result_is_stale(rules: Rules, view: View, now: float) -> bool:
    """Whether a finished reduce was not committed for so long that its bytes evidently cannot be
    had.

    Then trying again is better than standing still, and who holds the result lets it go.
    """
    return view.done_since is not None and now >= view.done_since + rules.grace_s


def failed(state: LedgerState, view: View, peer: PeerId) -> bool:
    """Whether `peer` reported that it gave the reduce under way up."""
    report, roster = view.failed.get(peer), state.roster
    if report is None or roster is None:
        return False
    return (report.step, report.attempt) == (state.step, roster.attempt)


def failure_known(state: LedgerState, view: View) -> bool:
    """A live participant gave up, or none is left alive."""
    if state.roster is None:
        return False
    live = [peer for peer in state.roster.peers if peer not in view.down]
    return not live or any(failed(state, view, peer) for peer in live)


def _commit(rules: Rules, state: LedgerState, view: View, update: Digest) -> Wish:
    roster = state.roster
    assert roster is not None
    newest = -1 if state.snapshot is None else state.snapshot.step
    fresh = [step for step in view.snapshots if newest < step <= state.step]
    snapshot = SnapshotRef(max(fresh), view.snapshots[max(fresh)]) if fresh else None
    value = Commit(state.step, roster.attempt, update, snapshot)
    reason = f"the reduce of outer step {state.step} is done"
    if update in view.held or view.done_since is None:
        return Wish(value, reason)
    return Wish(value, reason, look_again_at=view.done_since + rules.grace_s)


def _again(rules: Rules, state: LedgerState, view: View, now: float, why: str) -> Wish:
    if state.attempt >= rules.attempts_max:
        return Wish(Skip(state.step), f"all {rules.attempts_max} attempts failed")
    able = survivors(rules, state, view)
    if len(able) >= rules.participants_min:
        return _opening(state, view, able, f"attempt {state.attempt - 1}: {why}")
    until = now if view.failed_since is None else view.failed_since + rules.grace_s
    if now < until:
        return Wish(None, "too few are left to try again", look_again_at=until)
    return Wish(Skip(state.step), "too few are left to try again")


def survivors(rules: Rules, state: LedgerState, view: View) -> tuple[Participant, ...]:
    """Who would take part in the next attempt.

    Not who is down or leaves, nor who is named by at least half of the others that reported; but if
    that leaves too few, the named get another chance: two neighbours may well accuse each other.
    """
    roster = state.roster
    assert roster is not None
    numbers = {each.peer: each for each in roster.participants}
    numbers |= {each.peer: each for each in gathered(rules, state, view).contributors}
    here = [peer for peer in numbers if peer not in view.down and view.stays(peer)]
    accused = _accused(state, view, here)
    trusted = [peer for peer in here if peer not in accused]
    chosen = trusted if len(trusted) >= max(rules.participants_min, 2) else here
    return tuple(numbers[peer] for peer in chosen)


def _accused(state: LedgerState, view: View, peers: list[PeerId]) -> set[PeerId]:
    """Those of `peers` whom at least half of the other reporters suspect."""
    roster = state.roster
    assert roster is not None
    reporters = {peer for peer in roster.peers if failed(state, view, peer)}
    against: Counter[PeerId] = Counter()
    for reporter in reporters:
        against.update(set(view.failed[reporter].suspects) - {reporter})
    others = {peer: len(reporters) - (peer in reporters) for peer in peers}
    return {peer for peer in peers if 0 < others[peer] <= 2 * against[peer]}

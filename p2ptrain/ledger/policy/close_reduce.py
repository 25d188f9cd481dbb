"""While a reduce is under way: decide to commit its result, to try again, or to skip the step.

- Commit if most participants made the same update and its bytes can be had. Also commit if this
  node made it and most participants may still report the same.
- Start the next attempt, without the peers to blame, if all live participants failed, if one did
  some time ago, or if too few are left that could have made the same.
- Skip the step if its attempts are used up, or too few peers are left.
"""

from __future__ import annotations

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Participant, Skip
from p2ptrain.ledger.policy.blame import DOUBT_MIN
from p2ptrain.ledger.policy.open_reduce import Wish, gathered, opening
from p2ptrain.ledger.policy.reports import View
from p2ptrain.ledger.policy.snapshot_votes import snapshot_to_name
from p2ptrain.ledger.policy.suspicion import Suspicion
from p2ptrain.ledger.policy.update_votes import Voices

TRIES_BY_SUSPICION = 2
"""Attempts after which participants sit out by turns. A run that allows no more attempts has no
turns.
"""

ALONE_GRACES = 4
"""Multiple of grace_s after which a participant that averages alone and reports nothing has failed:
2 min by default. It moves nothing over a network, and no other participant could report the
failure.
"""


def while_reducing(rules: Rules, state: LedgerState, view: View, now: float) -> Wish:
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
        until = _alone_until(rules, state, view)
        return Wish(None, "the reduce is under way", silent, until)
    patient_until = view.failed_since + rules.patience_s
    if silent and now < patient_until:
        return Wish(None, "a reduce failed; hearing the others", silent, patient_until)
    return _again(rules, state, view, now, "it failed")


def finished_update(state: LedgerState, view: View) -> Digest | None:
    """Return the result of the reduce under way, if it is known and its bytes can be had.

    Either most participants made it, or this node did and most may still report the same. Other
    nodes do not believe a few participants (SPEC.md S12).
    """
    assert state.roster is not None
    voices = voices_of(state, view)
    update = voices.agreed()
    if update is None:
        own = made_by(state, view, view.me)
        return own if own is not None and voices.may_agree(own) else None
    live = (peer for peer in state.roster.peers if peer not in view.down)
    can_be_had = update in view.held or any(made_by(state, view, peer) == update for peer in live)
    return update if can_be_had else None


def is_made(state: LedgerState, view: View, update: Digest) -> bool:
    """Return whether this node, or most participants, made `update` in the reduce under way."""
    return update in (made_by(state, view, view.me), voices_of(state, view).agreed())


def made_by(state: LedgerState, view: View, peer: PeerId) -> Digest | None:
    """Return the update that `peer` says it made in the reduce under way, if any."""
    report, roster = view.done.get(peer), state.roster
    assert roster is not None
    if report is None or (report.step, report.attempt) != (state.step, roster.attempt):
        return None
    return report.update


def voices_of(state: LedgerState, view: View) -> Voices:
    """Return which updates the participants say they made, also those that have gone down since."""
    assert state.roster is not None
    voices = Voices(len(state.roster.peers))
    for peer in state.roster.peers:
        update = made_by(state, view, peer)
        if update is not None:
            voices.add(peer, update)
        elif peer not in view.down and not failed(state, view, peer):
            voices.open.add(peer)
    return voices


def result_is_stale(rules: Rules, view: View, now: float) -> bool:
    """Return whether a finished reduce has been uncommitted for so long that its bytes evidently
    cannot be had.

    Then another attempt is better than no progress, and nodes that hold the result give it up.
    """
    return view.done_since is not None and now >= view.done_since + rules.grace_s


def failed(state: LedgerState, view: View, peer: PeerId) -> bool:
    """Return whether `peer` reported that it abandoned the reduce under way."""
    report, roster = view.failed.get(peer), state.roster
    assert roster is not None
    return report is not None and (report.step, report.attempt) == (state.step, roster.attempt)


def confessed(state: LedgerState, view: View) -> tuple[PeerId, ...]:
    """Return the participants of the reduce under way that report that their own work is lost."""
    assert state.roster is not None
    return tuple(
        peer
        for peer in state.roster.peers
        if failed(state, view, peer) and peer in view.failed[peer].suspects
    )


def failure_known(state: LedgerState, view: View) -> bool:
    """Return whether the reduce has visibly failed: a live participant abandoned it, none is live,
    or too few are left for a result that others believe.
    """
    assert state.roster is not None
    live = [peer for peer in state.roster.peers if peer not in view.down]
    gave_up = any(failed(state, view, peer) for peer in live)
    return not live or gave_up or voices_of(state, view).lost


def alone_too_long(rules: Rules, state: LedgerState, view: View, now: float) -> bool:
    """Return whether the only participant is another peer and should have reported by now."""
    return (until := _alone_until(rules, state, view)) is not None and now >= until


def _alone_until(rules: Rules, state: LedgerState, view: View) -> float | None:
    roster, since = state.roster, view.reducing_since
    assert roster is not None
    if since is None or len(roster.peers) > 1 or roster.peers[0] == view.me:
        return None
    return since + ALONE_GRACES * rules.grace_s


def _commit(rules: Rules, state: LedgerState, view: View, update: Digest) -> Wish:
    roster = state.roster
    assert roster is not None
    snapshot = snapshot_to_name(rules, state, view)
    named = None if snapshot is None else state.digest
    value = Commit(state.step, roster.attempt, update, snapshot, named)
    reason = f"the reduce of outer step {state.step} is done"
    if update in view.held or view.done_since is None:
        return Wish(value, reason)
    return Wish(value, reason, look_again_at=view.done_since + rules.grace_s)


def _again(rules: Rules, state: LedgerState, view: View, now: float, why: str) -> Wish:
    if state.tries >= rules.attempts_max:
        return Wish(Skip(state.step), f"all {rules.attempts_max} attempts failed")
    able = survivors(rules, state, view)
    if len(able) >= rules.participants_min:
        return opening(state, view, able, f"attempt {state.attempt - 1}: {why}", now)
    until = now if view.failed_since is None else view.failed_since + rules.grace_s
    if now < until:
        return Wish(None, "too few are left to try again", look_again_at=until)
    return Wish(Skip(state.step), "too few are left to try again")


def survivors(rules: Rules, state: LedgerState, view: View) -> tuple[Participant, ...]:
    """Return the participants of the next attempt: all that could take part but the most doubted
    (`blame`). At most half sit out, since few accusers are enough to accuse many.

    After TRIES_BY_SUSPICION attempts a third sits out as well, by turns, as far as there is room
    beside those that are doubted for sure. So a peer that spoils averages without a trace (it sends
    two means) is missing in most outer steps, and so is one of two that cannot reach each other.
    """
    roster = state.roster
    assert roster is not None
    here = could_take_part(rules, state, view)
    most = len(here) - _least(rules, len(here))
    under_way = view.blame.failure(roster.peers, view.accusations(roster))
    untraced = under_way is None
    doubted = view.blame.sitting_out(frozenset(here), most, under_way, untraced=untraced)
    out = list(doubted)
    if state.tries >= TRIES_BY_SUSPICION:
        among = frozenset(here)
        sure = [it for it in doubted if view.blame.against(it, among, under_way) >= DOUBT_MIN]
        out = list(dict.fromkeys((*sure, *_turn(state, sorted(here)), *doubted)))[:most]
    return tuple(part for peer, part in here.items() if peer not in out)


def _turn(state: LedgerState, here: list[PeerId]) -> list[PeerId]:
    """Return the third of `here` whose turn it is to sit out, in another order at each step: there
    may not be room for all of it.
    """
    ways = max(1, min(3, len(here)))
    turn = here[(state.step + state.tries) % ways :: ways]
    first = state.step % max(1, len(turn))
    return turn[first:] + turn[:first]


def _least(rules: Rules, count: int) -> int:
    """Return how many of `count` take part at least: half of them, or more if the run demands
    more.
    """
    return min(count, max(rules.participants_min, (count + 1) // 2))


def could_take_part(rules: Rules, state: LedgerState, view: View) -> dict[PeerId, Participant]:
    """Return all peers that took part or are ready now, without those that are down or leave. A
    peer that reported that its work is lost counts only once it is ready again.
    """
    roster = state.roster
    assert roster is not None
    ready = {each.peer: each for each in gathered(rules, state, view).contributors}
    numbers = {each.peer: each for each in roster.participants} | ready
    gone = view.down | (suspicion_of(state, view).confessed - ready.keys())
    return {peer: part for peer, part in numbers.items() if peer not in gone and view.stays(peer)}


def suspicion_of(state: LedgerState, view: View) -> Suspicion:
    """Return which peers the participants that abandoned the reduce under way accuse."""
    suspicion = Suspicion()
    assert state.roster is not None
    for peer in state.roster.peers:
        if failed(state, view, peer):
            suspicion.add(peer, view.failed[peer].suspects)
    return suspicion

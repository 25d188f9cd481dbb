"""While a reduce is under way: commit its result, try it again, or give the step up.

- A participant is done, and the bytes can be had: commit.
- All living ones failed, or one did some time ago: the next attempt, without who is to blame.
- Attempts are used up, or too few are left: skip.
"""

from __future__ import annotations

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.gathering import Wish, gathered, opening
from p2ptrain.ledger.rules import Rules
from p2ptrain.ledger.state import LedgerState
from p2ptrain.ledger.suspicion import Suspicion
from p2ptrain.ledger.values import Commit, Participant, Skip
from p2ptrain.ledger.view import View
from p2ptrain.ledger.vouching import snapshot_to_name


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
    assert roster is not None
    voices: dict[Digest, int] = {}
    for peer in roster.peers:
        report = view.done.get(peer)
        if report is None or (report.step, report.attempt) != (state.step, roster.attempt):
            continue
        if peer not in view.down or report.update in view.held:
            voices[report.update] = voices.get(report.update, 0) + 1
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
    assert roster is not None
    return report is not None and (report.step, report.attempt) == (state.step, roster.attempt)


def confessed(state: LedgerState, view: View) -> tuple[PeerId, ...]:
    """The participants of the reduce under way that say that their own work is lost."""
    assert state.roster is not None
    return tuple(
        peer
        for peer in state.roster.peers
        if failed(state, view, peer) and peer in view.failed[peer].suspects
    )


def failure_known(state: LedgerState, view: View) -> bool:
    """A live participant gave up, or none is left alive."""
    assert state.roster is not None
    live = [peer for peer in state.roster.peers if peer not in view.down]
    return not live or any(failed(state, view, peer) for peer in live)


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
        return opening(state, view, able, f"attempt {state.attempt - 1}: {why}")
    until = now if view.failed_since is None else view.failed_since + rules.grace_s
    if now < until:
        return Wish(None, "too few are left to try again", look_again_at=until)
    return Wish(Skip(state.step), "too few are left to try again")


def survivors(rules: Rules, state: LedgerState, view: View) -> tuple[Participant, ...]:
    """Who would take part in the next attempt.

    Not who is down or leaves, or said that its work is lost and is not ready again; nor who is
    named by at least half of the others that reported; but if that leaves too few, the named get
    another chance: two neighbours may well accuse each other.
    """
    roster = state.roster
    assert roster is not None
    ready = {each.peer: each for each in gathered(rules, state, view).contributors}
    numbers = {each.peer: each for each in roster.participants} | ready
    suspicion = suspicion_of(state, view)
    gone = view.down | (suspicion.confessed - ready.keys())
    here = [peer for peer in numbers if peer not in gone and view.stays(peer)]
    trusted = [peer for peer in here if peer not in suspicion.blamed]
    chosen = trusted if len(trusted) >= max(rules.participants_min, 2) else here
    return tuple(numbers[peer] for peer in chosen)


def suspicion_of(state: LedgerState, view: View) -> Suspicion:
    """What the participants that gave the reduce under way up hold against each other."""
    suspicion = Suspicion()
    assert state.roster is not None
    for peer in state.roster.peers:
        if failed(state, view, peer):
            suspicion.add(peer, view.failed[peer].suspects)
    return suspicion

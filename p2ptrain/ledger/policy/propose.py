"""Decide what this node proposes next: a pure function of rules, state, reports, and time.

The answer always has its reason in words, and names the peers it waits for; people read it in the
status. Grace and patience count from times noted in the view (`View.enough_since` and the like), so
this module needs no clock and no memory.
"""

from __future__ import annotations

import math
from dataclasses import replace

from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import Heal
from p2ptrain.ledger.policy import open_reduce
from p2ptrain.ledger.policy.close_reduce import (
    alone_too_long,
    failure_known,
    finished_update,
    while_reducing,
)
from p2ptrain.ledger.policy.grace import grace_after
from p2ptrain.ledger.policy.incremental import ReadyTally, Tally, tally_of_reduce
from p2ptrain.ledger.policy.open_reduce import Gathered, Wish, while_gathering
from p2ptrain.ledger.policy.reports import View


def what_to_propose(rules: Rules, state: LedgerState, view: View, now: float) -> Wish:
    """Return the value that this node would propose now, or what it waits for."""
    if state.phase is Phase.HEALED:
        return Wish(None, "this branch has healed; looking for the chain to follow")
    if view.outranked_by is not None and state.past:
        parting = view.outranked_by
        heal = Heal(state.step, parting.height, parting.digest)
        return Wish(heal, "a chain that outranks this branch was found")
    if state.phase is Phase.GATHER:
        have = open_reduce.gathered(rules, state, view)
        return while_gathering(rules, state, view, have, now)
    if state.phase is Phase.REDUCE:
        return while_reducing(rules, state, view, now)
    return Wish(None, "the run has ended")


def reconsider(
    rules: Rules, state: LedgerState, view: View, now: float
) -> tuple[Wish, Tally | None]:
    """Note in `view` when there was first enough, a failure, or a result, since waiting counts from
    there. Return what to propose, and a tally that recognises reports that cannot change it.
    """
    if view.outranked_by is not None:
        return what_to_propose(rules, state, view, now), None
    if state.phase is Phase.GATHER:
        if view.gathering_since is None:
            view.gathering_since = now
        have = open_reduce.gathered(rules, state, view)
        _note_enough(rules, state, view, have, now)
        wish = while_gathering(rules, state, view, have, now)
        return wish, ReadyTally.of(rules, state, have) if wish.value is None else None
    if state.phase is Phase.REDUCE:
        ends_at = _note_results(rules, state, view, now)
        wish = while_reducing(rules, state, view, now)
        if view.failed_since is None and wish.look_again_at is None and ends_at < math.inf:
            wish = replace(wish, look_again_at=ends_at)
        return wish, tally_of_reduce(state, view, wish)
    return what_to_propose(rules, state, view, now), None


def _note_enough(rules: Rules, state: LedgerState, view: View, have: Gathered, now: float) -> None:
    if not have.enough:
        view.enough_since = None
    elif view.enough_since is None:
        view.enough_since = now
        view.grace_s = grace_after(view.lags, rules.grace_s)
        if view.quorum_at is None or view.quorum_at[0] != state.step:
            view.quorum_at = (state.step, now)
            assert view.gathering_since is not None
            view.credit.earn(now - view.gathering_since, rules.grace_s)
    if have.enough and have.awaited and not have.punctual:
        view.credit.spend()


def _note_results(rules: Rules, state: LedgerState, view: View, now: float) -> float:
    """Note results and failures. Return when the reduce counts as failed even if nobody reports it:
    all of its participants may be liars who are up and silent, and then no honest one abandons it.
    """
    if view.reducing_since is None:
        view.reducing_since = now
    ends_at = view.reducing_since + rules.reduce_s
    if view.failed_since is None and (
        now >= ends_at or failure_known(state, view) or alone_too_long(rules, state, view, now)
    ):
        view.failed_since = now
    if view.done_since is None and finished_update(state, view) is not None:
        view.done_since = now
    return ends_at

"""What this node would have agreed next: a pure function of rules, state, what it heard, and time.

The answer always has its reason in words, and names whom it waits for; people read it in the
status. Grace and patience are measured from the times that the view noted (`View.enough_since` and
the like), so that nothing here has a clock or a memory.
"""

from __future__ import annotations

from p2ptrain.ledger.gathering import Wish, gathered, while_gathering
from p2ptrain.ledger.grace import grace_after
from p2ptrain.ledger.reducing import failure_known, finished_update, while_reducing
from p2ptrain.ledger.rules import Rules
from p2ptrain.ledger.state import LedgerState, Phase
from p2ptrain.ledger.view import View


def what_to_propose(rules: Rules, state: LedgerState, view: View, now: float) -> Wish:
    """The next value that this node would propose now, or what it waits for."""
    match state.phase:
        case Phase.GATHER:
            return while_gathering(rules, state, view, now)
        case Phase.REDUCE:
            return while_reducing(rules, state, view, now)
        case Phase.ENDED:
            return Wish(None, "the run has ended")


def observe(rules: Rules, state: LedgerState, view: View, now: float) -> None:
    """Note in `view` since when there is enough, a failure, a result: waiting counts from there."""
    if state.phase is Phase.GATHER:
        if not gathered(rules, state, view).enough:
            view.enough_since = None
        elif view.enough_since is None:
            _begin_grace(rules, state, view, now)
        return
    if view.failed_since is None and failure_known(state, view):
        view.failed_since = now
    if view.done_since is None and finished_update(state, view) is not None:
        view.done_since = now


def _begin_grace(rules: Rules, state: LedgerState, view: View, now: float) -> None:
    view.enough_since = now
    view.grace_s = grace_after(view.lags, rules.grace_s)
    if view.quorum_at is None or view.quorum_at[0] != state.step:
        view.quorum_at = (state.step, now)

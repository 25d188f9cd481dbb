"""Give up an attempt whose result is not committed because participants fell silent after it.

A participant may be up, and report neither a result nor a failure. If too few others can report the
result, no majority of the participants ever does, and the members would wait for `reduce_s`: 20
minutes or more. A participant that has the result can tell: its own exchange is over, so those of
the others should be over soon. Members without a result cannot tell, since honest participants are
silent while they average. So they only believe a participant that gives up itself, and a liar that
claims to be done early does not end anyone's exchange.
"""

from __future__ import annotations

import trio

from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.ledger.policy.reduce_results import update_votes_of
from p2ptrain.node.state.context import Context

LATE_S_MIN = 10.0
"""Minimum seconds to wait for the others' reports: five heartbeats."""


async def wait_for_commit(context: Context, roster: Roster, took_s: float) -> None:
    """Wait until the members have agreed on how to continue after the reduce of `roster`, which
    took `took_s` here. A participant with a slow connection may need as long again as we did.

    Raises ReduceAborted: the members have not agreed in time, because of silent participants.
    """
    late_s = took_s + max(LATE_S_MIN, context.ledger.rules.grace_s)
    with trio.move_on_after(late_s) as waiting:
        while context.ledger.snapshot.roster == roster:
            await context.changes.wait()
    if not waiting.cancelled_caught:
        return
    if silent := silent_participants(context, roster):
        what = f"after {late_s:.0f} s, no majority of the participants has reported its result"
        raise ReduceAborted(roster.step, roster.attempt, silent, what)
    while context.ledger.snapshot.roster == roster:
        await context.changes.wait()


def silent_participants(context: Context, roster: Roster) -> tuple[PeerId, ...]:
    """Return the participants that are up and have not reported how the reduce of `roster` ended.
    Return none if they do not matter, since a majority has reported the same result."""
    ledger = context.ledger.core
    if ledger.state.roster != roster:
        return ()
    votes = update_votes_of(ledger.state, ledger.reports)
    if votes.agreed() is not None:
        return ()
    return tuple(peer for peer in roster.peers if peer in votes.open and peer != context.me)

"""Warn the owner when members begin an exchange without this node, and say why.

The node's work is not lost: it counts in the next exchange. But the work of a node that is left out
again and again contributes little, and the node's owner can usually fix the cause. The roster,
which names the participants, does not say why a node is missing. So the reason is derived from what
this node knows about itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.policy.blame import DOUBT_MIN
from p2ptrain.ledger.policy.participants import is_awaited
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.sync.trainer_orders import LocalWork

WARNING = "left out"
WITHOUT = "members began an exchange without this node"
CONNECTION = "check this machine's network; this node's work counts in the next exchange"
JUST_STARTED = (
    "this is expected after a start, since this node was not running before; its work counts in "
    "the next exchange"
)
JUST_STARTED_S = 120.0
"""Seconds after its start during which a node that is left out need not look for a fault: the
members have only just heard that it is back."""

IN_TURN = (
    "its work counts in the next exchange; this node may not be the cause, since members sit out "
    "in turn if the cause of a failure is unclear; if this happens often, check this machine's "
    "network"
)

LATE = Caution(
    "SYNC-DROPPED",
    f"{WITHOUT}: it had not finished its inner steps when the grace period was over",
    "its work counts in the next exchange; if this happens often, check which other programs "
    "use this machine",
)
BEHIND = Caution(
    "SYNC-DROPPED",
    f"{WITHOUT}: its weights were not up to date yet",
    "it catches up by itself; if this happens often, its network or its disk is too slow for "
    "the run",
)
UNHEARD = Caution(
    "SYNC-DROPPED",
    f"{WITHOUT} although it was ready: its report did not reach them in time",
    CONNECTION,
)
FAILED = Caution(
    "SYNC-DROPPED", f"{WITHOUT}: an attempt with it failed, so they try without it", IN_TURN
)
REPEATED = Caution(
    "SYNC-DROPPED",
    "members repeat a failed exchange without this node although it was ready: it sits out in "
    "turn, or its report did not reach them in time",
    IN_TURN,
)
DOUBTED = Caution(
    "SYNC-DROPPED",
    f"{WITHOUT}: attempts with it have failed recently, so it sits out some outer steps",
    IN_TURN,
)
GONE = Caution(
    "SYNC-DROPPED",
    "the members considered this node down and continued without it; it is joining again",
    CONNECTION,
)


@dataclass(slots=True)
class LeftOutWatch:
    """Compares the rosters of successive exchanges with this node's own state."""

    member: bool = False
    """Whether this node was a member at the last check."""
    judged: tuple[int, int] | None = None
    """The outer step and attempt of the exchange at the last check."""
    had_us: int | None = None
    """The outer step of the newest attempt that included this node."""

    def check(
        self,
        state: LedgerState,
        me: PeerId,
        work: LocalWork | None,
        outer_step: int | None,
        *,
        doubted: bool = False,
    ) -> Caution | None:
        """Return why an exchange that has opened since the last check leaves this node out. Return
        None if there is no such exchange, or if it includes this node. Also return None if the
        members do not wait for this node, since it was admitted during this outer step.

        `doubted`: whether this node's own record of failed attempts justifies leaving it out.
        """
        was_member, self.member = self.member, state.is_member(me)
        before, self.judged = self.judged, reduce_under_way(state)
        roster = state.roster
        if was_member and not self.member:
            return GONE
        if roster is None or self.judged in (before, None):
            return None
        if me in roster.peers:
            self.had_us = roster.step
            return None
        if not self.member or not is_awaited(state, me) or not state.leases.get(me):
            return None
        if self.had_us == roster.step:
            return FAILED
        if outer_step != roster.step:
            return BEHIND
        if doubted:
            return DOUBTED
        if work is None or work.step != roster.step:
            return LATE
        return REPEATED if roster.attempt else UNHEARD


def reduce_under_way(state: LedgerState) -> tuple[int, int] | None:
    """Return the outer step and attempt of the current exchange; None if there is none."""
    roster = state.roster
    return (roster.step, roster.attempt) if roster and roster.participants else None


def as_after_start(why: Caution, uptime_s: float) -> Caution:
    """Return `why`, without advice about the network if this node has just been started."""
    started = uptime_s < JUST_STARTED_S and why.do == CONNECTION
    return replace(why, do=JUST_STARTED) if started else why


async def notice_left_out(context: Context) -> None:
    """Keep the warning up to date until cancelled. It stays until an exchange includes this node.

    Exchanges that opened before this process started, or in an outer step in which this node was
    paused, are ignored: the owner knows the reason."""
    state, alerts = context.ledger.snapshot, context.alerts
    rosters = LeftOutWatch(state.is_member(context.me), reduce_under_way(state))
    rested: int | None = None
    while True:
        state = context.ledger.snapshot
        blame, everybody = context.ledger.core.reports.blame, frozenset(state.members)
        doubted = blame.against(context.me, everybody) >= DOUBT_MIN
        why = rosters.check(
            state, context.me, context.trainer.work, context.outer.step, doubted=doubted
        )
        if not context.may_train:
            rested = state.step
        if why is not None and state.step != rested and not context.state.leaving:
            alerts.show(WARNING, as_after_start(why, context.now() - context.state.started_s))
            context.journal.write("left-out", step=state.step, why=why.what)
            context.changes.notify_all()
        elif state.roster is not None and context.me in state.roster.peers:
            alerts.clear(WARNING)
        await context.changes.wait_calmly()

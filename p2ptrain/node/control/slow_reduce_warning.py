"""Warn once when an exchange takes more than 20 s and more than twice this node's usual time.

This module only warns; the ledger decides whether the members continue without a peer. After each
start of the node, the first exchanges are only measured, and never reported as slow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from p2ptrain.names import label
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import duration
from p2ptrain.suggested_command import to_paste

WARNING = "slow exchange"

LOOK_S = 2.0

KNOWN_MIN = 3
KNOWN_MAX = 15

PATIENCE_S = 20.0
"""Minimum duration in seconds of an exchange that is reported as slow."""

UNHEARD_S = 10.0
"""Seconds of silence (five heartbeats) after which the warning names the silent participant."""


@dataclass(slots=True)
class ReduceDurations:
    """The durations of the latest successful exchanges, and the time when the current one began."""

    patience_s: float = PATIENCE_S
    known_s: deque[float] = field(default_factory=lambda: deque(maxlen=KNOWN_MAX))
    since: float | None = None

    def check(self, *, under_way: bool, done: bool, now: float) -> float | None:
        """Return how many seconds the current exchange has lasted if it is slow, otherwise None.
        `under_way`: there is a current exchange. `done`: one has succeeded since the last call."""
        if self.since is not None and (done or not under_way):
            if done:
                self.known_s.append(now - self.since)
            self.since = None
        if not under_way:
            return None
        self.since = now if self.since is None else self.since
        if len(self.known_s) < KNOWN_MIN:
            return None
        lasts_s = now - self.since
        return lasts_s if lasts_s > max(self.patience_s, 2 * median(self.known_s)) else None


async def notice_slow_reduce(
    context: Context, *, patience_s: float = PATIENCE_S, look_s: float = LOOK_S
) -> None:
    """Keep the warning up to date until cancelled. It disappears when the slow exchange ends."""
    exchanges, last = ReduceDurations(patience_s), context.reduce.last_ring
    while True:
        done, last = context.reduce.last_ring is not last, context.reduce.last_ring
        under_way = context.reduce.averaging is not None
        lasts_s = exchanges.check(under_way=under_way, done=done, now=context.now())
        if lasts_s is None:
            context.alerts.clear(WARNING)
        elif WARNING not in context.alerts:
            caution = caution_about(context, lasts_s, median(exchanges.known_s))
            context.alerts.show(WARNING, caution)
            context.journal.write("exchange-slow", step=context.reduce.averaging, what=caution.what)
            context.changes.notify_all()
        await context.changes.wait(at_most_s=look_s)


def caution_about(context: Context, lasts_s: float, usual_s: float) -> Caution:
    """Return the warning. If a participant has been silent, name the one that has been silent for
    the longest time: it is a likely cause."""
    what = (
        f"this exchange has taken {duration(lasts_s)} so far; the usual time is {duration(usual_s)}"
    )
    roster, table = context.ledger.snapshot.roster, context.peers.table
    records = [record for record in map(table.get, roster.peers if roster else ()) if record]
    silent = min(records, key=lambda record: record.heard_s, default=None)
    if silent is not None and (silent_s := context.now() - silent.heard_s) > UNHEARD_S:
        what += f"; the last heartbeat of {label(silent.peer)} arrived {duration(silent_s)} ago"
    rates = f"{to_paste(context.home.root, 'status')} shows the rates"
    return Caution(
        "SYNC-SLOW",
        what,
        f"if a peer delays the exchange for too long, the members continue without it; {rates}",
    )

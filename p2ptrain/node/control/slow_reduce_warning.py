"""Warn once when an exchange takes more than 20 s and more than twice this node's usual time.

This module only warns; the ledger decides whether the members continue without a peer. While the
usual time is not known yet, an exchange is reported after a minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import time

from p2ptrain.node.control import waiting
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import duration
from p2ptrain.observe.waits import clock_time
from p2ptrain.suggested_command import to_paste

WARNING = "slow exchange"

LOOK_S = 2.0

KNOWN_MIN = 3
KNOWN_MAX = 15

PATIENCE_S = 20.0
"""Minimum duration in seconds of an exchange that is reported as slow."""

UNKNOWN_S = 60.0
"""Seconds after which an exchange is reported as slow while its usual duration is not known."""


@dataclass(slots=True)
class ReduceDurations:
    """The durations of the latest successful exchanges, and the time when the current one began."""

    patience_s: float = PATIENCE_S
    unknown_s: float = UNKNOWN_S
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
        lasts_s, usual_s = now - self.since, self.usual_s
        limit_s = self.unknown_s if usual_s is None else max(self.patience_s, 2 * usual_s)
        return lasts_s if lasts_s > limit_s else None

    @property
    def usual_s(self) -> float | None:
        """The usual duration of an exchange in seconds; None while it is not known."""
        return median(self.known_s) if len(self.known_s) >= KNOWN_MIN else None


async def notice_slow_reduce(
    context: Context,
    *,
    patience_s: float = PATIENCE_S,
    unknown_s: float = UNKNOWN_S,
    look_s: float = LOOK_S,
    wall: Callable[[], float] = time,
) -> None:
    """Keep the warning up to date until cancelled. It disappears when the slow exchange ends."""
    exchanges, last = ReduceDurations(patience_s, unknown_s), context.reduce.last_ring
    while True:
        done, last = context.reduce.last_ring is not last, context.reduce.last_ring
        under_way = context.reduce.averaging is not None
        lasts_s = exchanges.check(under_way=under_way, done=done, now=context.now())
        if lasts_s is None:
            context.alerts.clear(WARNING)
        elif WARNING not in context.alerts:
            caution = caution_about(context, lasts_s, exchanges.usual_s, wall())
            context.alerts.show(WARNING, caution)
            context.journal.write("exchange-slow", step=context.reduce.averaging, what=caution.what)
            context.changes.notify_all()
        await context.changes.wait(at_most_s=look_s)


def caution_about(
    context: Context, lasts_s: float, usual_s: float | None, wall_s: float
) -> Caution:
    """Return the warning, at the time `wall_s` in Unix seconds. It names the participants that the
    ledger waits for, the likely cause, and the time at which the members decide without them, as
    far as the ledger knows these."""
    since = f"since {clock_time(wall_s - lasts_s)}"
    usual = "" if usual_s is None else f", usually {duration(usual_s)}"
    what = f"this exchange has taken {duration(lasts_s)} so far, {since}{usual}"
    wait = waiting.current_wait(context, wall_s)
    then = "if a peer delays the exchange for too long, the members continue without it"
    if wait is not None and wait.until is not None:
        then = f"until {clock_time(wait.until)}; {wait.then}"
    facts = (wait.who, wait.suspect) if wait is not None and wait.peers else ()
    rates = f"{to_paste(context.home.root, 'status')} shows the rates"
    return Caution("SYNC-SLOW", what, "; ".join(each for each in (*facts, then, rates) if each))

"""Warn once when an exchange takes more than twice as long as this node's exchanges usually take.

This module only warns; the ledger decides whether the members continue without a peer. This process
measures the usual time, so it never calls its first exchanges slow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from p2ptrain.names import label
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import duration
from p2ptrain.suggested_command import to_paste

WARNING = "slow exchange"

LOOK_S = 2.0

KNOWN_MIN = 3
KNOWN_MAX = 15

PATIENCE_S = 20.0
"""Minimum duration in seconds of an exchange that is reported."""

UNHEARD_S = 10.0
"""Five heartbeats: the warning names a participant that has been silent for longer."""


@dataclass(slots=True)
class Exchanges:
    """Durations of the latest successful exchanges, measured from their rosters, and the start of
    the current one."""

    known_s: deque[float] = field(default_factory=lambda: deque(maxlen=KNOWN_MAX))
    since: float | None = None

    def look(self, *, under_way: bool, done: bool, now: float) -> float | None:
        """Return how long the current exchange has lasted if that is too long, otherwise None.
        `under_way`: there is a current exchange. `done`: an exchange has succeeded since the last
        call.
        """
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
        return lasts_s if lasts_s > max(PATIENCE_S, 2 * self.usual_s) else None

    @property
    def usual_s(self) -> float:
        return median(self.known_s)


async def notice_slow_exchange(parts: Parts) -> None:
    """Keep the warning up to date until cancelled. It ends with the slow exchange."""
    exchanges, standing, last = Exchanges(), parts.standing, parts.standing.last_reduce
    while True:
        done, last = standing.last_reduce is not last, standing.last_reduce
        under_way = standing.averaging is not None
        lasts_s = exchanges.look(under_way=under_way, done=done, now=parts.now())
        if lasts_s is None:
            standing.warnings.pop(WARNING, None)
        elif WARNING not in standing.warnings:
            caution = caution_about(parts, lasts_s, exchanges.usual_s)
            standing.warnings[WARNING] = caution
            parts.journal.write("exchange-slow", step=standing.averaging, what=caution.what)
            parts.changes.ring()
        await parts.changes.wait(at_most_s=LOOK_S)


def caution_about(parts: Parts, lasts_s: float, usual_s: float) -> Caution:
    """Return the warning. It names the participant that has been silent longest: a likely cause."""
    what = (
        f"this exchange has taken {duration(lasts_s)} so far; the usual time is {duration(usual_s)}"
    )
    roster = parts.ledger.state.roster
    views = [parts.peers.get(peer) for peer in roster.peers] if roster else []
    heard = {view.peer: parts.now() - view.heard_s for view in views if view is not None}
    silent = max(heard, key=lambda peer: heard[peer], default=None)
    if silent is not None and heard[silent] > UNHEARD_S:
        what += f"; {label(silent)} was last heard {duration(heard[silent])} ago"
    rates = f"{to_paste(parts.home.root, 'status')} shows the rates"
    return Caution(
        "SYNC-SLOW",
        what,
        f"if a peer delays the exchange for long, the members continue without it; {rates}",
    )

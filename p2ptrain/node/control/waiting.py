"""Notice what this node waits for, and say so once when a wait lasts twice as long as usual.

The ledger knows why nothing is agreed; the tasks only know that they have nothing to do. So while a
node stands by, its state shows the ledger's reason. This module only reports: the ledger decides
when the members continue, and without whom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import time

from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.queries import LedgerStatus
from p2ptrain.names import label
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import (
    CatchingUp,
    FetchingSnapshot,
    Loading,
    Serving,
    StandingBy,
    State,
    Training,
    duration,
    words,
)
from p2ptrain.observe.waits import Wait, clock_time
from p2ptrain.suggested_command import to_paste

WARNING = "waiting"
LOOK_S = 2.0

KNOWN_MIN, KNOWN_MAX = 3, 15
PATIENCE_S = 20.0
"""Minimum seconds of a state that is reported as unusually long."""

UNKNOWN_S = 60.0
"""Seconds after which a state is reported whose usual duration is not known yet."""

UNHEARD_S = 10.0
"""Seconds of silence (five heartbeats) after which a peer is a likely cause."""

WATCHED = (StandingBy, Serving, Loading, FetchingSnapshot, CatchingUp, Training)
"""The states that this module reports. Exchanges and isolation have warnings of their own, and a
leaving node has a deadline."""


@dataclass(slots=True)
class StateDurations:
    """How long the states of this node usually last. A state that shows progress, such as a
    download, lasts until it shows the next progress."""

    patience_s: float = PATIENCE_S
    unknown_s: float = UNKNOWN_S
    current: object = None
    since_s: float = 0.0
    known_s: dict[str, deque[float]] = field(default_factory=dict)

    def overdue(self, state: State, step: int, now: float) -> float | None:
        """Return how many seconds `state` has lasted if that is unusually long; otherwise None. A
        seed always serves, so for a seed the time since the last outer step counts instead."""
        current = (state, step if isinstance(state, Serving) else 0)
        if current != self.current:
            if isinstance(self.current, tuple):
                known = self.known_s.setdefault(self.current[0].name, deque(maxlen=KNOWN_MAX))
                known.append(now - self.since_s)
            self.current, self.since_s = current, now
        lasts_s = now - self.since_s
        limit_s = self.limit_s(state)
        return lasts_s if limit_s is not None and lasts_s > limit_s else None

    def usual_s(self, state: State) -> float | None:
        """Return the usual duration of `state` in seconds; None while it is not known."""
        known = self.known_s.get(state.name, ())
        return median(known) if len(known) >= KNOWN_MIN else None

    def limit_s(self, state: State) -> float | None:
        if not isinstance(state, WATCHED):
            return None
        usual_s = self.usual_s(state)
        if usual_s is not None:
            return max(self.patience_s, 2 * usual_s)
        # The first inner steps can take minutes, for instance while the model is compiled. The
        # trainer has a deadline of its own.
        return None if isinstance(state, Training) else self.unknown_s


async def notice_waits(
    context: Context,
    *,
    patience_s: float = PATIENCE_S,
    unknown_s: float = UNKNOWN_S,
    look_s: float = LOOK_S,
    wall: Callable[[], float] = time,
) -> None:
    """Keep `state.wait` and the warning up to date until cancelled."""
    durations, look_at = StateDurations(patience_s, unknown_s), context.now()
    while True:
        if context.now() >= look_at or context.ledger.snapshot.phase is Phase.ENDED:
            look_at = context.now() + look_s
            _note_wait(context, wall())
        state, step = context.state.current, context.ledger.snapshot.step
        ended = context.ledger.snapshot.phase is Phase.ENDED or context.state.leaving
        over = ended or bool(context.state.stopped) or context.state.pause is not None
        lasts_s = None if over else durations.overdue(state, step, context.now())
        if lasts_s is None:
            context.alerts.clear(WARNING)
        elif WARNING not in context.alerts:
            caution = caution_about(context, lasts_s, durations.usual_s(state), wall())
            context.alerts.show(WARNING, caution)
            context.journal.write("waiting", state=state.name, seconds=lasts_s, why=caution.what)
            context.changes.notify_all()
        await context.changes.wait_calmly(at_most_s=look_s)


def _note_wait(context: Context, wall_s: float) -> None:
    before = context.state.wait
    wait = context.state.wait = current_wait(context, wall_s)
    if (wait and wait.who) != (before and before.who):
        context.changes.notify_all()


def current_wait(context: Context, wall_s: float) -> Wait | None:
    """Return what the ledger waits for at the time `wall_s`, in Unix seconds; None after the end of
    the run. If it already waited for this reason when it was last noticed, it waits since then."""
    now = context.now()
    agreement = context.ledger.core.status(now)
    if agreement.phase is Phase.ENDED:
        return None
    before = context.state.wait
    same = before is not None and before.reason == agreement.reason
    return Wait(
        agreement.reason,
        before.since if before and same else wall_s,
        agreement.waiting_for,
        None if agreement.until is None else wall_s + max(0.0, agreement.until - now),
        _then(agreement),
        likely_cause(context, agreement),
    )


def _then(agreement: LedgerStatus) -> str:
    """Say what happens after the wait."""
    if agreement.proposes:
        return "the members vote on what comes next"
    if agreement.phase is Phase.REDUCE:
        late = "then the members decide without the missing reports"
        return late if agreement.until else "then the members agree on the result"
    if agreement.waiting_for:
        late = "then the members exchange without those that are late"
        return late if agreement.until else "then the members exchange"
    if agreement.until:
        return "then the members try again"
    return "the members exchange as soon as there are enough of them"


def likely_cause(context: Context, agreement: LedgerStatus) -> str:
    """Name the peer that has been silent for the longest time, if any, of those that the members
    wait for. If they wait for any peer, look at all members."""
    awaited = agreement.waiting_for or context.ledger.snapshot.members
    others = [peer for peer in awaited if peer != context.me]
    records = [record for record in map(context.peers.table.get, others) if record]
    silent = min(records, key=lambda record: record.heard_s, default=None)
    if silent is not None and (silent_s := context.now() - silent.heard_s) > UNHEARD_S:
        return f"the likely cause is {label(silent.peer)}, last heard {duration(silent_s)} ago"
    if agreement.waiting_for and records:
        slow = records[0]
        return f"{label(slow.peer)} is {slow.heartbeat.state}"
    return ""


def caution_about(
    context: Context, lasts_s: float, usual_s: float | None, wall_s: float
) -> Caution:
    """Return the warning about a state that has lasted for `lasts_s` seconds."""
    usual = "" if usual_s is None else f", usually {duration(usual_s)}"
    since = f"since {clock_time(wall_s - lasts_s)}"
    what = f"{words(context.shown)} for {duration(lasts_s)} {since}{usual}"
    wait = context.state.wait
    until = "" if wait is None or wait.until is None else f"until {clock_time(wait.until)}"
    facts = () if wait is None else (wait.who, until, wait.then, wait.suspect)
    told = "; ".join(fact for fact in facts if fact)
    return Caution("WAITING", what, told or f"{to_paste(context.home.root, 'status')} shows more")

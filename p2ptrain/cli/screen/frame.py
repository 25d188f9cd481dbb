"""The screen of `p2ptrain top`, as a pure function of what is known and the size of the terminal.

    a few lines in words · the loss as a sparkline · one lane for each peer · the keys

Every text may come from a peer, so each part of a line goes through `cells.fitted`. The result has
exactly as many lines as the terminal, and no line is wider than it. This module knows neither
clocks nor terminals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from statistics import median
from typing import Literal

from p2ptrain.cli.screen.lanes import LEGEND, lane, sparkline
from p2ptrain.errors import counted
from p2ptrain.observe.cells import cells_of, fitted, padded
from p2ptrain.observe.series import PeerStepRow, StepRow
from p2ptrain.observe.states import duration
from p2ptrain.observe.status import MemberStatus, NodeStatus
from p2ptrain.observe.step_line import short
from p2ptrain.observe.waits import clock_time

Style = Literal["", "bold", "dim", "alarm"]

WIDE = 72
"""Columns from which lanes have the peer's state beside them."""

VERY_WIDE = 96
"""Columns from which lanes also have the round-trip time beside them."""

STALE_S = 5.0
"""Seconds without an answer after which the screen says so. The node is asked every second."""

ETA_STEPS = 20
STEPS_SHOWN_MAX = 20
CELLS_EACH_MIN, CELLS_EACH_MAX = 3, 6
"""Cells of one outer step in a lane. With fewer than three, a step would look all of one kind."""

HEAD_ROWS = 9
"""Usual number of lines above the lanes."""

CHART_ROWS_MAX = 5
WARNINGS_MAX = 2
NAME_CELLS = 16
MARKS = {"green": "●", "yellow": "◐", "red": "○"}
KEYS = "p pause  r resume  f finish  ↑↓ scroll  ? help  q quit"
KEYS_SHORT = "p r f  ? help  q quit"


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Known:
    """The facts about the node and its run. `now` is in Unix seconds."""

    now: float
    status: NodeStatus | None = None
    heard: float = 0.0
    """When the node sent `status`, in Unix seconds."""
    fault: str = ""
    """Why the node does not answer; "" if it does."""
    steps: Sequence[StepRow] = ()
    recent: Sequence[PeerStepRow] = ()
    no_history: str = ""
    """Why there are no steps; "" if there are."""


@dataclass(frozen=True, slots=True)
class View:
    """The view that the user has chosen. `notice` is the answer to the last key."""

    notice: str = ""
    asks: str = ""
    """A question that the next key answers; "" if there is none."""
    helps: bool = False
    scrolled: int = 0
    """Number of lanes above the first one shown."""


def frame(known: Known, view: View, columns: int, rows: int) -> list[Line]:
    """Return the whole screen: `rows` lines of at most `columns` cells."""
    foot = list(_foot(known, view, columns))
    lanes = len(known.status.members) + 1 if known.status else 0
    spare = rows - len(foot) - lanes - HEAD_ROWS
    head = list(_head(known, columns, max(1, min(CHART_ROWS_MAX, 1 + spare // 2))))
    if view.helps:
        body = [Line(text) for text in HELP]
    else:
        body = list(_lanes(known, view, columns, max(0, rows - len(head) - len(foot))))
    room = max(0, rows - len(foot))
    lines = [*head, *body][:room]
    lines += [Line("")] * (room - len(lines))
    # On a very low terminal, the keys matter more than the lanes.
    return [
        Line(fitted(each.text, columns).rstrip(), each.style) for each in [*lines, *foot][-rows:]
    ]


HELP = (
    "",
    LEGEND,
    "A lane shows the last outer steps of a peer, the newest on the right.",
    "● up  ◐ late  ○ down, as this node hears it",
    "",
    "p  pause: frees the device, and keeps serving the run",
    "r  resume",
    "f  finish: contributes this outer step, then leaves the run",
    "q  quits this screen; the node goes on",
    "",
    "Times of peers are as they reported them, but RTT is as measured here.",
    "Tokens are certified.",
)


# ── the lines in words ───────────────────────────────────────────────────────────────────────────


def _head(known: Known, columns: int, chart_rows: int) -> Iterator[Line]:
    status = known.status
    if status is None:
        yield Line("p2ptrain top", "bold")
        yield Line(known.fault or "asking the node …", "alarm" if known.fault else "")
        return
    title = status.run_name or "no run yet"
    name = fitted(status.peer_name, NAME_CELLS)
    yield Line(f"{padded(title, max(0, columns - cells_of(name) - 1))} {name}", "bold")
    if known.fault and known.now - known.heard > STALE_S:
        ago = duration(known.now - known.heard)
        yield Line(f"no answer for {ago}, since {clock_time(known.heard)}: {known.fault}", "alarm")
    yield Line(status.state)
    yield Line(_progress(status, known, columns))
    yield Line("  ".join(_numbers(status, known)))
    if wait := _wait(status, known.now):
        yield Line(wait)
    yield from map(Line, _losses(known, columns, chart_rows))
    for caution in status.cautions[:WARNINGS_MAX]:
        yield Line(f"! {caution.what}", "alarm")
    if more := status.cautions[WARNINGS_MAX:]:
        yield Line(f"! and {counted(len(more), 'more warning')}: see status", "alarm")


def _progress(status: NodeStatus, known: Known, columns: int) -> str:
    done, steps = status.outer_step, max(1, status.outer_steps)
    text = f"step {done}/{status.outer_steps}"
    eta = _eta_s(known.steps, steps - done)
    left = "" if eta is None else f"  ETA {duration(eta)}"
    width = min(30, columns - len(text) - len(left) - 10)
    filled = max(0, min(width, width * done // steps))
    bar = f"  {'█' * filled}{'·' * (width - filled)}" if width >= 8 else ""
    return f"{text}{bar}  {100 * done // steps} %{left}"


def _eta_s(rows: Sequence[StepRow], left: int) -> float | None:
    """Return the seconds that `left` more outer steps take, by the newest ones."""
    timed = [(row.step, row.time) for row in rows[-ETA_STEPS:] if row.time is not None]
    spans = [
        (later - time) / (step - before)
        for (before, time), (step, later) in pairwise(timed)
        if step > before and later > time
    ]
    return left * median(spans) if len(spans) >= 3 and left > 0 else None


def _numbers(status: NodeStatus, known: Known) -> Iterator[str]:
    if status.loss is not None:
        yield f"loss {status.loss:.3f}"
    if status.validation_loss is not None:
        yield f"held out {status.validation_loss:.3f}"
    rates = [member.tokens_per_s for member in status.members]
    if total := sum(rates):
        yield f"{short(total)} tok/s"
    if status.tokens_total:
        yield f"yours {short(status.tokens)} of {short(status.tokens_total)} tokens"
    yield f"up {duration(status.uptime_s)}"


def _wait(status: NodeStatus, now: float) -> str:
    """Return what the run waits for, briefly: `status --why` tells more."""
    wait: Mapping[str, object] = status.waiting
    reason, until = str(wait.get("for", "")), wait.get("until")
    if not reason:
        return status.waits_for and f"waits: {status.waits_for}"
    names = wait.get("names")
    named = f": {', '.join(map(str, names[:3]))}" if isinstance(names, list) and names else ""
    late = f", {duration(until - now)} left" if isinstance(until, int | float) else ""
    return f"waits: {reason}{named}{late}"


def _losses(known: Known, columns: int, rows: int) -> Iterator[str]:
    losses = (row.loss if row.loss is not None else row.held_out for row in known.steps)
    # The outer steps before this node joined may have no reports.
    values = list(dropwhile(lambda value: value is None, losses))
    known_values = [value for value in values if value is not None]
    if not known_values:
        yield f"loss: {known.no_history or 'no history yet'}"
        return
    ends = f"{known_values[0]:.2f} → {known_values[-1]:.2f}"
    width = columns - len("loss ") - len(ends) - 2
    *above, last = sparkline(values, width, rows)
    yield from (f"     {each}" for each in above)
    yield f"loss {last}  {ends}"


# ── the lanes ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Beside:
    """The columns between a peer's name and its lane: its state in `state_cells` cells (0: there is
    no room for any of the columns), tokens per second, last heard, and RTT if there is room."""

    state_cells: int
    rtt: bool

    @property
    def cells(self) -> int:
        return self.state_cells and self.state_cells + 15 + 7 * self.rtt

    def text(self, state: str, *numbers: str) -> str:
        if not self.state_cells:
            return ""
        shown = numbers if self.rtt else numbers[:-1]
        return f"{padded(state, self.state_cells)} " + "".join(
            f"{fitted(each, 6):>6} " for each in shown
        )


def _lanes(known: Known, view: View, columns: int, rows: int) -> Iterator[Line]:
    members = ranked(known.status)
    if not members or rows < 2:
        return
    room = rows - 1
    hidden = len(members) > room
    room -= hidden
    first = min(view.scrolled, max(0, len(members) - room))
    state_cells = min(30, columns // 3) if columns >= WIDE else 0
    beside = Beside(state_cells, rtt=columns >= VERY_WIDE)
    steps, cells_each = _scale(known.recent, columns - NAME_CELLS - 3 - beside.cells)
    yield _heading(steps, beside)
    by_peer = {(row.peer, row.step): row for row in known.recent}
    for member in members[first : first + room]:
        drawn = lane([by_peer.get((member.peer, step)) for step in steps], cells_each)
        if not steps and not state_cells:
            drawn = member.state  # Without history, a narrow screen has room for the state.
        yield _lane_line(member, known.status, beside, drawn)
    if hidden:
        yield Line(f"lanes {first + 1} to {first + room} of {len(members)}", "dim")


def _scale(recent: Sequence[PeerStepRow], width: int) -> tuple[list[int], int]:
    """Return the outer steps to show, oldest first, and the number of cells for each."""
    newest = max((row.step for row in recent), default=None)
    if newest is None or width < 1:
        return [], 1
    first = min(row.step for row in recent)
    count = max(1, min(STEPS_SHOWN_MAX, newest - first + 1, width // CELLS_EACH_MIN))
    cells_each = max(1, min(CELLS_EACH_MAX, width // count))
    return list(range(newest - count + 1, newest + 1)), cells_each


def _heading(steps: Sequence[int], beside: Beside) -> Line:
    shown = f"steps {steps[0]} to {steps[-1]}" if steps else ""
    told = beside.text("state", "tok/s", "heard", "RTT")
    return Line(f"  {padded('peer', NAME_CELLS)} {told}{shown}", "dim")


def _lane_line(member: MemberStatus, status: NodeStatus | None, beside: Beside, drawn: str) -> Line:
    mine = status is not None and member.peer == status.peer
    mark = MARKS.get(member.health, "?")
    name = f"{member.peer_name} you" if mine else member.peer_name
    heard = "" if member.heard_s_ago is None else duration(member.heard_s_ago)
    rate = short(member.tokens_per_s) if member.tokens_per_s else ""
    rtt = "" if member.rtt_ms is None else f"{member.rtt_ms:.0f} ms"
    told = beside.text(member.state, rate, heard, rtt)
    style: Style = "alarm" if member.health == "red" else "bold" if mine else ""
    return Line(f"{mark} {padded(name, NAME_CELLS)} {told}{drawn}", style)


def ranked(status: NodeStatus | None) -> list[MemberStatus]:
    """Return the members in the order of their lanes: this node, then those that are down or late,
    then by name."""
    if status is None:
        return []
    urgency = {"red": 0, "yellow": 1}
    return sorted(
        status.members,
        key=lambda each: (
            each.peer != status.peer,
            urgency.get(each.health, 2),
            each.peer_name,
            each.peer,
        ),
    )


def _foot(known: Known, view: View, columns: int) -> Iterator[Line]:
    if view.asks:
        yield Line(f"{view.asks} (y/n)", "bold")
    elif view.notice:
        yield Line(view.notice, "bold")
    yield Line(KEYS if columns >= len(KEYS) else KEYS_SHORT, "dim")

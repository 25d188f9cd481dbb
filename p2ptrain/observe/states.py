"""The states of a node, and the texts that describe them.

    starting → checking → connecting → awaiting your answer → awaiting approval → fetching snapshot
    → catching up → loading → standing by → training → exchanging → training …
    other states: serving (a seed), paused, leaving, isolated, stopped

The log, the status and heartbeats all show `words(state)`, so users see the same phrase everywhere.
`name` is for programs: it is the same for all values of the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from p2ptrain.errors import counted

FOR_OTHERS = "for the others to finish their inner steps"
"""The reason why a node stands by when it has finished its own inner steps."""


@dataclass(frozen=True, slots=True)
class Starting:
    name: ClassVar[str] = "starting"


@dataclass(frozen=True, slots=True)
class Checking:
    name: ClassVar[str] = "checking"


@dataclass(frozen=True, slots=True)
class Connecting:
    name: ClassVar[str] = "connecting"


@dataclass(frozen=True, slots=True)
class AwaitingAnswer:
    """The user has been asked whether to take part in a run, and has not answered yet."""

    name: ClassVar[str] = "awaiting your answer"


@dataclass(frozen=True, slots=True)
class AwaitingApproval:
    name: ClassVar[str] = "awaiting approval"


@dataclass(frozen=True, slots=True)
class FetchingSnapshot:
    """`seconds_left` is an estimate; None until there is one."""

    name: ClassVar[str] = "fetching snapshot"
    bytes_done: int
    bytes_total: int
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class CatchingUp:
    name: ClassVar[str] = "catching up"
    updates_left: int


@dataclass(frozen=True, slots=True)
class Loading:
    name: ClassVar[str] = "loading"


@dataclass(frozen=True, slots=True)
class StandingBy:
    """Ready, but this node has nothing to do yet. `waits_for` says what it waits for."""

    name: ClassVar[str] = "standing by"
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Training:
    name: ClassVar[str] = "training"
    inner_step: int
    inner_steps: int


@dataclass(frozen=True, slots=True)
class Exchanging:
    """An average is being computed. `parts` is 0 if the progress is unknown."""

    name: ClassVar[str] = "exchanging"
    part: int = 0
    parts: int = 0
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A seed, which does not train. It serves the run to joiners, and votes if it is a founder."""

    name: ClassVar[str] = "serving"


@dataclass(frozen=True, slots=True)
class Paused:
    """The node does not train, because its owner wants so. It still votes, serves and relays."""

    name: ClassVar[str] = "paused"
    reason: str


@dataclass(frozen=True, slots=True)
class Leaving:
    name: ClassVar[str] = "leaving"


@dataclass(frozen=True, slots=True)
class Isolated:
    """The node cannot reach enough members to agree on anything."""

    name: ClassVar[str] = "isolated"
    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The organiser has ended the run before its last outer step. The node serves its weights."""

    name: ClassVar[str] = "stopped"
    reason: str


State = (
    Starting
    | Checking
    | Connecting
    | AwaitingAnswer
    | AwaitingApproval
    | FetchingSnapshot
    | CatchingUp
    | Loading
    | StandingBy
    | Training
    | Exchanging
    | Serving
    | Paused
    | Leaving
    | Isolated
    | Stopped
)


def words(state: State) -> str:
    """Return a phrase such as "fetching snapshot (41 %, 6 min)" or "training (inner 37/100)"."""
    match state:
        case FetchingSnapshot(bytes_done, bytes_total, seconds_left):
            percent = f"{100 * bytes_done // max(1, bytes_total)} %"
            return _with(state, percent, "" if seconds_left is None else duration(seconds_left))
        case CatchingUp(updates_left):
            return _with(state, f"{counted(updates_left, 'update')} left")
        case StandingBy(waits_for):
            return _with(state, waits_for)
        case Training(inner_step, inner_steps):
            return _with(state, f"inner {inner_step}/{inner_steps}")
        case Exchanging(part, parts, bytes_per_s):
            progress = f"part {part}/{parts}" if parts else ""
            return _with(state, progress, rate(bytes_per_s) if bytes_per_s else "")
        case Isolated(reason) | Paused(reason) | Stopped(reason):
            return f"{state.name}: {reason}"
        case _:
            return state.name


def _with(state: State, *details: str) -> str:
    shown = ", ".join(detail for detail in details if detail)
    return f"{state.name} ({shown})" if shown else state.name


def duration(seconds: float) -> str:
    """Format a duration for users: "40 s", "6 min", "2 h 05 min", "3 d 4 h"."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24} h"


def rate(bytes_per_s: float) -> str:
    """Format a rate in bits per second, the usual unit for connection speeds: "212 Mbit/s"."""
    bits = 8 * bytes_per_s
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}" if bits < 100 * size else f"{bits / size:.0f} {unit}"
    return f"{bits / 1e3:.0f} kbit/s"


def size(count: float) -> str:
    """Format a number of bytes in decimal units: "4.2 MB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"

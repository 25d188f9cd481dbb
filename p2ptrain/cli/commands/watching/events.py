"""`p2ptrain events`: what happened in the run, in plain sentences, from the node's series."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.history import opened_series, series_path
from p2ptrain.cli.homes import HomeOption, open_home
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.cli.rendering import printable
from p2ptrain.errors import ConfigError

if TYPE_CHECKING:
    from p2ptrain.observe.series import EventRow

    Event = tuple[int, EventRow]

EXAMPLES = examples(
    "p2ptrain events",
    "p2ptrain events -f --kind stall,skip,warning",
    "p2ptrain events --last 500 --json",
)
LOOK_EVERY_S = 1.0
"""Seconds between two looks at the file. A look that finds nothing new reads one number."""

PAGE = 500


def events(
    home: HomeOption = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Keep running, and print each event as it happens."),
    ] = False,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, help="Begin with the newest N events.")
    ] = 30,
    kind: Annotated[
        str,
        typer.Option(
            "--kind", metavar="KINDS", help="Print only these kinds: join,leave,stall,warning, …"
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show what happened in the run, the oldest first.

    The command works whether or not a node runs in the home. With --json, it prints one object per
    line.
    """
    where = open_home(home, to_write=False).root
    kinds = kinds_in(kind)
    known = 0
    if not follow or series_path(where).exists():
        # Look for the newest number first: an event that comes meanwhile is printed below.
        with opened_series(where) as reader:
            known = max((number for number, _ in reader.events(limit=1)), default=0)
        found = newest(where, last, kinds)
        for event in found:
            _show(event, as_json=as_json)
            known = max(known, event[0])
        if not found and last:
            progress("no such event has been recorded yet" if kind else "no event is recorded yet")
    if follow:
        for event in followed(where, known, kinds, time.sleep):
            _show(event, as_json=as_json)


def kinds_in(text: str) -> frozenset[str]:
    """Return the kinds in a list such as "join,leave"; all kinds for "".

    Raises ConfigError: there is no such kind.
    """
    from p2ptrain.observe.series.rows import KINDS

    named = frozenset(word.strip() for word in text.split(",") if word.strip())
    if unknown := sorted(named - KINDS):
        raise ConfigError(
            f"there is no kind of event {printable(unknown[0])[:40]!r}",
            do=f"the kinds are {', '.join(sorted(KINDS))}",
        )
    return named or KINDS


def newest(home: Path, count: int, kinds: frozenset[str]) -> list[Event]:
    """Return the newest `count` events of these kinds, oldest first. Raises StoreError (SERIES)."""
    found: deque[Event] = deque()
    before: int | None = None
    with opened_series(home) as reader:
        while len(found) < count and (page := reader.events(before=before, limit=PAGE)):
            before = page[-1][0]
            chosen = [event for event in page if event[1].kind in kinds]
            found.extendleft(chosen[: count - len(found)])
    return list(found)


def followed(
    home: Path, known: int, kinds: frozenset[str], rest: Callable[[float], object]
) -> Iterator[Event]:
    """Yield each event after the event `known` as it happens. `rest` sleeps between two looks.

    If the node begins a new file, because the old one was damaged, follow the new one.
    """
    from p2ptrain.observe.series import SeriesUnavailable

    told = ""
    while True:
        try:
            with opened_series(home) as reader:
                inode, version, told = series_path(home).stat().st_ino, -1, ""
                while _inode(home) == inode:
                    if (now := reader.version()) != version:
                        version = now
                        while page := reader.events_after(known, limit=PAGE):
                            known = page[-1][0]
                            yield from (event for event in page if event[1].kind in kinds)
                    rest(LOOK_EVERY_S)
            known = 0
        except (SeriesUnavailable, FileNotFoundError) as error:
            what = getattr(error, "what", "the series is being replaced")
            if what != told:
                told = what
                progress(f"waiting: {what}")
            rest(LOOK_EVERY_S)


def _inode(home: Path) -> int | None:
    try:
        return series_path(home).stat().st_ino
    except FileNotFoundError:
        return None


def _show(event: Event, *, as_json: bool) -> None:
    from p2ptrain.ids import PeerId
    from p2ptrain.names import peer_name

    number, row = event
    if as_json:
        name = peer_name(PeerId(row.peer)) if row.peer else ""
        facts = {"time": row.time, "step": row.step, "kind": row.kind, "peer": row.peer}
        result_json({"id": number, **facts, "peer_name": name, "text": row.text})
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.time))
    result(printable(f"{when}  step {row.step:<6} {row.kind:<11} {row.text}"))

"""`p2ptrain top`: a screen that shows the run while it goes on, with keys for pause and finish."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.homes import HomeOption, home_path
from p2ptrain.cli.output import JsonOption, examples, result, result_json

if TYPE_CHECKING:
    from p2ptrain.cli.screen.frame import View
    from p2ptrain.cli.screen.poller import Poller
    from p2ptrain.cli.screen.terminal import Terminal

EXAMPLES = examples("p2ptrain top", "p2ptrain top --home /srv/seed", "p2ptrain top --once")
REDRAW_S = 1.0
ROWS_MIN = 40
"""Rows of a screen that is printed once: room for the lanes of a usual run."""

FINISH = "Finish: contribute this outer step, then leave the run?"
COMMANDS = {"p": "pause", "r": "resume"}


def top(
    home: HomeOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one screen as plain text, and exit.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the run while it goes on: progress, loss, peers.

    Keys: p pauses, r resumes, f finishes, ? explains, q quits. The node goes on when you quit. With
    --json, print one object with the status and the newest outer steps, and exit.
    """
    where = home_path(home)
    send_command(where, "status")  # If no node runs here, say so before taking over the terminal.
    if once or as_json:
        _print_once(where, as_json=as_json)
        return
    from p2ptrain.cli.screen.poller import Poller
    from p2ptrain.cli.screen.terminal import opened

    with opened() as terminal:
        poller = Poller(where, terminal.wake)
        poller.start()
        try:
            _show(terminal, poller)
        finally:
            poller.stop()


def _print_once(where: Path, *, as_json: bool) -> None:
    from p2ptrain.cli.screen.frame import View, frame
    from p2ptrain.cli.screen.poller import Poller

    with closing(Poller(where, lambda: None)) as poller:
        poller.look()
    known = poller.known
    if as_json:
        facts = {name: list(map(asdict, getattr(known, name))) for name in ("steps", "recent")}
        result_json({"status": known.status and known.status.to_json(), **facts})
        return
    size = shutil.get_terminal_size()
    for line in frame(known, View(), size.columns, max(size.lines, ROWS_MIN))[:-1]:
        if line.text:
            result(line.text)


def _show(terminal: Terminal, poller: Poller) -> None:
    """Draw, and obey keys, until the user quits or the terminal is gone."""
    from p2ptrain.cli.screen.frame import View, frame

    view: View | None = View()
    while view is not None:
        known = replace(poller.known, now=time.time())
        if poller.notice:
            view, poller.notice = replace(view, notice=poller.notice), ""
        terminal.draw(frame(known, view, *terminal.size()))
        view = after_keys(view, terminal.keys(REDRAW_S), poller)


def after_keys(view: View, keys: Sequence[str], poller: Poller) -> View | None:
    """Return the view after `keys`; None if the user quits. Commands go to `poller`."""
    current: View | None = view
    for key in keys:
        if current is not None:
            current = _after(current, key, poller)
    return current


def _after(view: View, key: str, poller: Poller) -> View | None:
    if view.asks:
        agreed = key in ("y", "Y")
        if agreed:
            poller.send("finish")
        notice = "finishing …" if agreed else "not finished: the node goes on"
        return replace(view, asks="", notice=notice)
    match key:
        case "q" | "":
            return None
        case "?" | "h":
            return replace(view, helps=not view.helps, notice="")
        case "f":
            return replace(view, asks=FINISH, notice="")
        case "down" | "j":
            status = poller.known.status
            last = len(status.members) - 1 if status else 0
            return replace(view, scrolled=max(0, min(view.scrolled + 1, last)))
        case "up" | "k":
            return replace(view, scrolled=max(0, view.scrolled - 1))
        case _ if key in COMMANDS:
            poller.send(COMMANDS[key])
            return replace(view, notice=f"{COMMANDS[key]} …")
    return replace(view, helps=False, notice="")

"""A line at the bottom of the terminal that shows what the node is doing now.

The log above it scrolls as usual: before each line of the log, the live line is erased, and drawn
again below. There is no live line if stderr is not a terminal, if the terminal cannot erase a line
(TERM=dumb), and while the node is not in the foreground, where it would garble the line of the
shell. It has no colours, so NO_COLOR does not change it. All calls come from trio's thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

import trio

from p2ptrain.errors import counted
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cells import fitted
from p2ptrain.observe.states import StandingBy, duration, words
from p2ptrain.observe.waits import clock_time
from p2ptrain.standard_error import disk_may_be_full

ERASE = "\r\x1b[K"
DRAW_S = 1.0
COLUMNS = 80
"""Assumed number of columns of a terminal that does not report its size."""


class LiveLine:
    """The output of a node: lines of the log, and below them a live line, if `is_live()`."""

    def __init__(
        self,
        stream: TextIO | None,
        *,
        is_live: Callable[[], bool],
        columns: Callable[[], int],
    ) -> None:
        self._stream = stream
        self._is_live = is_live
        self._columns = columns
        self._shown = ""

    def write_line(self, text: str) -> None:
        """Write one line of the log above the live line. If the disk is full, the line is lost."""
        live = self._shown and self._is_live()
        self._write(f"{ERASE}{text}\n{self._shown}" if live else f"{text}\n")

    def show(self, text: str) -> None:
        """Draw `text` as the live line, in place of the last one. "" erases the line."""
        if not self._is_live():
            self._shown = ""
        elif text or self._shown:
            self._shown = fitted(text, self._columns() - 1)
            self._write(f"{ERASE}{self._shown}")

    def _write(self, text: str) -> None:
        with disk_may_be_full():
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()


def open_live_line(
    *,
    quiet: bool,
    stream: TextIO | None = None,
    environment: Mapping[str, str] = os.environ,
) -> LiveLine:
    """Return the output on stderr, with a live line if this terminal can have one."""
    stream = sys.stderr if stream is None else stream
    able = not quiet and stream is not None and stream.isatty()
    able = able and environment.get("TERM", "dumb") != "dumb"
    return LiveLine(
        stream,
        is_live=lambda: able and stream is not None and _in_foreground(stream),
        columns=lambda: _columns(stream),
    )


def _in_foreground(stream: TextIO) -> bool:
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


def _columns(stream: TextIO | None) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or COLUMNS if stream else COLUMNS
    except (OSError, ValueError):
        return COLUMNS


async def keep_live_line(line: LiveLine, context: Callable[[], Context | None]) -> None:
    """Draw the live line once a second until cancelled, and then erase it. While `context()` is
    None, the node starts or asks the user something, and there is no line."""
    try:
        while True:
            current = context()
            line.show("" if current is None else live_text(current))
            await trio.sleep(DRAW_S)
    finally:
        line.show("")


def live_text(context: Context) -> str:
    """Return what the node is doing now, the most important facts first, because a narrow terminal
    cuts the line."""
    state, wait = context.shown, context.state.wait
    others = [peer for peer in context.ledger.snapshot.members if peer != context.me]
    up = sum(not context.peers.is_down(peer) for peer in others)
    idle = isinstance(state, StandingBy) and wait is not None and wait.until is not None
    parts = [
        f"step {context.outer.step or 0}/{context.manifest.outer.steps}",
        words(state),
        f"until {clock_time(wait.until)}" if idle and wait and wait.until else "",
        f"{context.trainer.tokens_per_s:,.0f} tok/s" if context.trainer.tokens_per_s else "",
        f"{up} of {counted(len(others), 'other member')} up" if others else "",
        counted(len(context.alerts.warnings), "warning") if context.alerts.warnings else "",
        f"up {duration(context.now() - context.state.started_s)}",
    ]
    return "  ".join(part for part in parts if part)

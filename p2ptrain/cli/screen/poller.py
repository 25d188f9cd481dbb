"""Ask a node for its status once a second, read its series, and pass the user's commands on.

All of this happens in a thread, so that keys are answered while the node is busy or hangs. The
screen only reads `known` and `notice`, each of which is replaced as a whole.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.history import series_path
from p2ptrain.cli.screen.frame import STEPS_SHOWN_MAX, Known
from p2ptrain.errors import P2PTrainError
from p2ptrain.observe.series import SeriesReader, SeriesUnavailable
from p2ptrain.observe.status import NodeStatus

ASK_EVERY_S = 1.0
ANSWER_S = 3.0
POINTS = 400
"""Number of points of the loss: more than a terminal has columns."""

WAITING_MAX = 8

Ask = Callable[[str], dict[str, Any]]


class Poller:
    """The thread that talks to the node in `home`. `changed` is called after each answer."""

    def __init__(self, home: Path, changed: Callable[[], None]) -> None:
        self.known = Known(time.time())
        self.notice = ""
        """The node's answer to the last command."""
        self._home = home
        self._changed = changed
        self._commands: queue.Queue[str | None] = queue.Queue(WAITING_MAX)
        self._reader: SeriesReader | None = None
        self._version = -1
        self._thread = threading.Thread(target=self._work, name="poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, but do not wait for a node that hangs."""
        with suppress(queue.Full):
            self._commands.put_nowait(None)
        self._thread.join(0.2)

    def send(self, command: str) -> None:
        """Pass `command` to the node soon. `notice` then has its answer."""
        with suppress(queue.Full):
            self._commands.put_nowait(command)

    def _work(self) -> None:
        while True:
            self.look()
            self._changed()
            try:
                command = self._commands.get(timeout=ASK_EVERY_S)
            except queue.Empty:
                continue
            if command is None:
                break
            self.notice = answer_to(command, self._ask)
            self._changed()
        self.close()

    def close(self) -> None:
        """Close the series, after the last call of `look`."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def look(self) -> None:
        """Ask for the status and read the series once."""
        known = replace(self.known, now=time.time())
        try:
            status = NodeStatus.from_json(self._ask("status"))
            known = replace(known, status=status, heard=time.time(), fault="")
        except P2PTrainError as error:
            known = replace(known, fault=error.what)
        self.known = self._with_history(known)

    def _ask(self, command: str) -> dict[str, Any]:
        return send_command(self._home, command, deadline_s=ANSWER_S)

    def _with_history(self, known: Known) -> Known:
        try:
            reader = self._reader = self._reader or SeriesReader(series_path(self._home))
            if (version := reader.version()) == self._version:
                return known
            steps, recent = reader.steps(points=POINTS), reader.recent(STEPS_SHOWN_MAX)
            self._version = version
            return replace(known, steps=steps, recent=recent, no_history="")
        except SeriesUnavailable as error:
            # The node may have put the file aside, so open it anew.
            if self._reader is not None:
                self._reader.close()
            self._reader, self._version = None, -1
            return replace(known, no_history=error.what)


def answer_to(command: str, ask: Ask) -> str:
    """Send `command`, and return the node's answer as one sentence."""
    try:
        reply = ask(command)
    except P2PTrainError as error:
        if "unknown command" in error.what:
            return f"this node's version does not know {command}: restart it with this version"
        return f"{command} failed: {error.what}"
    return str(reply.get("done") or f"{command}: done")

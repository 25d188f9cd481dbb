"""One node of the demo: its process, its journal and its status.

This module only does what any user can do: it starts the command, reads files, and sends signals.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]

STATUS_BYTES_MAX = 1 << 22
STATUS_S = 5.0
KILLED_S = 60.0
"""Seconds to wait for a killed process: if it was writing a lot, it may still wait for its disk.
"""


class CommandFailed(Exception):
    """A p2ptrain command ended with a status other than 0."""


class DemoNode:
    """A node process in `home`. `events` are the records of its journal read so far.

    `wrapped` turns a command into one that runs in the node's network namespace, if it has one.
    """

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.home = home
        self.wrapped: Callable[[list[str]], list[str]] = list
        self.events: list[Event] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._read_bytes = 0
        self._partial = b""

    def start(self, *arguments: str) -> None:
        """Run `p2ptrain node` with these arguments; its output goes to HOME/output.txt."""
        fixed = ("--home", str(self.home), "--yes", "--no-page")  # A page each would cost seconds.
        words = [*command("node"), *fixed, *arguments]
        self.run(self.wrapped(words), PYTHONUNBUFFERED="1")

    def run(self, words: list[str], **environment: str) -> None:
        """Run this command as the node's process; its output goes to HOME/output.txt."""
        with (self.home / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"NO_COLOR": "1"} | environment,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def returncode(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def output(self) -> str:
        path = self.home / "output.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def new_events(self) -> Iterator[Event]:
        """Yield the journal's records since the last call; they are also appended to `events`."""
        path = self.home / "journal.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read_bytes)
            fresh = file.read()
        self._read_bytes += len(fresh)
        *lines, self._partial = (self._partial + fresh).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self.events.append(event)
            yield event

    def find(self, kind: str, **fields: object) -> Event | None:
        """Return the first known record of this kind with these fields."""
        for event in self.events:
            if event["event"] == kind and all(event.get(k) == v for k, v in fields.items()):
                return event
        return None

    def status(self) -> dict[str, Any] | None:
        """Return the node's status; None if it does not answer."""
        try:
            with socket.socket(socket.AF_UNIX) as asker:
                asker.settimeout(STATUS_S)
                asker.connect(str(self.home / "control.sock"))
                asker.sendall(b'{"command":"status"}\n')
                with asker.makefile("rb") as reply:
                    answer = json.loads(reply.readline(STATUS_BYTES_MAX))
        except (OSError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None

    def kill(self) -> None:
        """Send SIGKILL to the node and its trainers at once, as if the machine lost power."""
        if self.process is not None and self.running:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(KILLED_S)

    def stop(self) -> None:
        """Send SIGTERM to the node alone, which should then leave in an orderly way."""
        if self.process is not None and self.running:
            self.process.send_signal(signal.SIGTERM)

    def finish(self, deadline_s: float) -> None:
        """Stop the node, wait, and kill it after `deadline_s`."""
        if self.process is None:
            return
        self.stop()
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()


def losses_of(events: Iterable[Event]) -> dict[int, float]:
    """Return the measured loss of θ by outer step. If several nodes reported a loss for a step, the
    report that covers the most blocks counts."""
    found: dict[int, Event] = {}
    for event in events:
        if event["event"] != "evaluated":
            continue
        best = found.setdefault(event["step"], event)
        if event["blocks"] > best["blocks"]:
            found[event["step"]] = event
    return {step: found[step]["loss"] for step in sorted(found)}


def command(*arguments: str) -> list[str]:
    """Return the p2ptrain command of this Python environment."""
    return [sys.executable, "-m", "p2ptrain.cli", *arguments]


def run_command(*arguments: str) -> str:
    """Run a `p2ptrain` command and return its standard output.

    Raises:
        CommandFailed: it failed; the error has its output.
    """
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise CommandFailed(f"p2ptrain {arguments[0]} failed:\n{done.stderr}")
    return done.stdout

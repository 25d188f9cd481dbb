"""Nodes in separate processes, observed only through what a user can see."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from p2ptrain.identity import Identity
from p2ptrain.ids import Digest
from p2ptrain.run import Run
from p2ptrain.store import Store
from p2ptrain.testing.node_process import DemoNode, Event, command
from tests.faults.screen import Screen

LOOK_EVERY_S = 0.02
WAIT_S = 90.0
"""Timeout in seconds. It is several times as long as any operation takes here, since tests share
their machine."""
ON_LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0", "--data-listen", "127.0.0.1:0")

Seen = TypeVar("Seen")


def wait_until(what: str, seen: Callable[[], Seen | None], *, deadline_s: float = WAIT_S) -> Seen:
    """Call `seen` until it returns a true value, and return that value."""
    ends_s = time.monotonic() + deadline_s
    never = threading.Event()
    while not (value := seen()):
        assert time.monotonic() < ends_s, f"after {deadline_s:.0f} s, this has not happened: {what}"
        never.wait(LOOK_EVERY_S)
    return value


class NodeProcess(DemoNode):
    """A process of `p2ptrain node` in a home, on loopback."""

    def begin(self, *arguments: str, limits: str = "", terminal: int | None = None) -> None:
        """Start the node. `limits` are shell commands such as `ulimit -n 16` that apply to this
        node only.

        The user agrees in advance, unless there is a `terminal` at which the node can ask.
        """
        self.home.mkdir(exist_ok=True)
        words = [*command("node"), "--no-page", "--home", str(self.home), *ON_LOOPBACK, *arguments]
        words += ["--yes"] if terminal is None else []
        if limits:
            words = ["sh", "-c", f'{limits} && exec "$@"', "sh", *words]
        with (self.home / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"NO_COLOR": "1"},
                start_new_session=True,
            )

    def saw(self, kind: str, *, deadline_s: float = WAIT_S, **fields: object) -> Event:
        """Wait for an event of this kind with these fields in the journal, and return it."""

        def look() -> Event | None:
            list(self.new_events())
            found = self.find(kind, **fields)
            assert found or self.running, f"the node ended:\n{self.output()}"
            return found

        return wait_until(f"{kind} {fields}", look, deadline_s=deadline_s)

    def said(self, text: str, *, deadline_s: float = WAIT_S) -> str:
        """Wait until the output contains `text`, and return the output."""
        wait_until(
            f"{text!r} in:\n{self.output()}",
            lambda: text in self.output() or not self.running,
            deadline_s=deadline_s,
        )
        assert text in self.output()
        return self.output()

    def address(self) -> str:
        """Wait until the node serves the run, and return its address."""

        def look() -> dict[str, Any] | None:
            assert self.running, f"the node ended:\n{self.output()}"
            status = self.status()
            return status if status and status["addresses"] else None

        status = wait_until("an address", look)
        return str(status["addresses"][0])

    def interrupt(self) -> None:
        """Send Ctrl-C. As in a terminal, it reaches only the node, since trainers run in separate
        sessions.
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)

    def ended(self, *, deadline_s: float = WAIT_S) -> Screen:
        """Wait until the node ends by itself, and return its screen."""
        assert self.process is not None
        status = self.process.wait(deadline_s)
        return Screen(status, "", self.output())

    def descendants(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def running(
    home: Path, *arguments: str, limits: str = "", terminal: int | None = None
) -> Iterator[NodeProcess]:
    """Run a node in `home`. The node is killed at the end of the `with` block."""
    node = NodeProcess(home.name, home)
    node.begin(*arguments, limits=limits, terminal=terminal)
    try:
        yield node
    finally:
        node.kill()


def home_of(identity: Identity, folder: Path) -> Path:
    """Make a new home in `folder` with this identity's key, and return it."""
    home = folder / f"home-{identity.peer[-6:]}"
    home.mkdir()
    key = home / "identity.key"
    key.touch(mode=0o600)
    key.write_bytes(identity.seed)
    return home


def rot_genesis(home: Path, run: Run) -> Digest:
    """Flip a bit of the first chunk of the initial weights in a store that is not in use. Return
    the chunk's digest.
    """
    with Store(home / "store") as store:
        chunk = store.manifest(run.manifest.genesis).chunks[0]
        with store.chunk_path(chunk).open("r+b") as file:
            file.seek(100)
            bit = file.read(1)[0] ^ 1
            file.seek(100)
            file.write(bytes([bit]))
    return chunk

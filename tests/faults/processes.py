"""Nodes as processes of their own, observed through what any user can see of them."""

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
"""Several times what anything takes here, since tests share their machine."""
ON_LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0", "--data-listen", "127.0.0.1:0")

Seen = TypeVar("Seen")


def wait_until(what: str, seen: Callable[[], Seen | None], *, deadline_s: float = WAIT_S) -> Seen:
    """Return the first true value of `seen`."""
    ends_s = time.monotonic() + deadline_s
    never = threading.Event()
    while not (value := seen()):
        assert time.monotonic() < ends_s, f"after {deadline_s:.0f} s, this has not happened: {what}"
        never.wait(LOOK_EVERY_S)
    return value


class NodeProcess(DemoNode):
    """`p2ptrain node` in a home, on loopback."""

    def begin(self, *arguments: str, limits: str = "", terminal: int | None = None) -> None:
        """Start it; `limits` are shell commands such as `ulimit -n 16`, for it alone.

        Its user agrees beforehand, unless there is a `terminal` to be asked at.
        """
        self.home.mkdir(exist_ok=True)
        words = [*command("node"), "--home", str(self.home), *ON_LOOPBACK, *arguments]
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
        """Return the journal's record of this kind with these fields. Wait for it if necessary."""

        def look() -> Event | None:
            list(self.new_events())
            found = self.find(kind, **fields)
            assert found or self.running, f"the node ended:\n{self.output()}"
            return found

        return wait_until(f"{kind} {fields}", look, deadline_s=deadline_s)

    def said(self, text: str, *, deadline_s: float = WAIT_S) -> str:
        """Return the output, once it contains `text`."""
        wait_until(
            f"{text!r} in:\n{self.output()}",
            lambda: text in self.output() or not self.running,
            deadline_s=deadline_s,
        )
        assert text in self.output()
        return self.output()

    def address(self) -> str:
        """Return the node's address, once it serves the run."""

        def look() -> dict[str, Any] | None:
            assert self.running, f"the node ended:\n{self.output()}"
            status = self.status()
            return status if status and status["addresses"] else None

        status = wait_until("an address", look)
        return str(status["addresses"][0])

    def interrupt(self) -> None:
        """Send Ctrl-C. In a terminal it reaches the node alone, since trainers have sessions of
        their own.
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)

    def ended(self, *, deadline_s: float = WAIT_S) -> Screen:
        """Return what is left on the screen after the node has ended by itself."""
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
    """A node that runs in `home` at most as long as the block."""
    node = NodeProcess(home.name, home)
    node.begin(*arguments, limits=limits, terminal=terminal)
    try:
        yield node
    finally:
        node.kill()


def home_of(identity: Identity, folder: Path) -> Path:
    """Make a new home in `folder` with this identity's key."""
    home = folder / f"home-{identity.peer[-6:]}"
    home.mkdir()
    key = home / "identity.key"
    key.touch(mode=0o600)
    key.write_bytes(identity.seed)
    return home


def rot_genesis(home: Path, run: Run) -> Digest:
    """Flip a bit of the first weights in a store that is not in use. Return the chunk's name."""
    with Store(home / "store") as store:
        chunk = store.manifest(run.manifest.genesis).chunks[0]
        with store.chunk_path(chunk).open("r+b") as file:
            file.seek(100)
            bit = file.read(1)[0] ^ 1
            file.seek(100)
            file.write(bytes([bit]))
    return chunk

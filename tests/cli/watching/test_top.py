"""`p2ptrain top` in a pseudo-terminal: it obeys keys, and gives the terminal back afterwards."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.cli.commands.watching.top import FINISH, after_keys
from p2ptrain.cli.screen.frame import Known, View
from p2ptrain.cli.screen.poller import Poller, answer_to
from p2ptrain.cli.screen.terminal import ENTER, LEAVE
from p2ptrain.errors import RemoteProtocolError, TryLater
from tests.cli.conftest import Command
from tests.cli.watching.made import NOW, made_status, write_series

LIMIT_S = 60.0


@contextmanager
def node(home: Path) -> Iterator[list[str]]:
    """Serve a control socket in `home` that answers any number of requests. Yield the commands."""
    commands = list[str]()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(home / "control.sock"))
    listener.listen()

    def serve() -> None:
        while True:
            client, _ = listener.accept()
            with client, client.makefile("rb") as lines:
                request = json.loads(lines.readline() or b'{"command":"end"}')
                commands.append(request["command"])
                reply: dict[str, Any] = {"done": "paused until you resume"}
                if request["command"] == "status":
                    reply = made_status().to_json()
                if request["command"] == "end":
                    return
                client.sendall(json.dumps(reply).encode() + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield commands
    finally:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(home / "control.sock"))
        thread.join(LIMIT_S)
        listener.close()


@dataclass
class Session:
    """`p2ptrain top` in a pseudo-terminal of 80 columns and 24 rows."""

    home: Path
    process: subprocess.Popen[bytes] = field(init=False)
    ours: int = field(init=False)
    theirs: int = field(init=False)
    written: bytes = b""

    def __enter__(self) -> Session:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "p2ptrain.cli", "top", "--home", str(self.home)],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env=os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"},
            preexec_fn=self._own_terminal,
        )
        return self

    def _own_terminal(self) -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def __exit__(self, *details: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)
        os.close(self.ours)
        os.close(self.theirs)

    def until(self, text: str) -> None:
        """Read until the terminal has shown `text`."""
        end = time.monotonic() + LIMIT_S
        while text.encode() not in self.written:
            assert time.monotonic() < end, self.written.decode(errors="replace")
            if select.select([self.ours], [], [], 1.0)[0]:
                self.written += os.read(self.ours, 65_536)

    def press(self, keys: str) -> None:
        self.written = b""
        os.write(self.ours, keys.encode())

    def ended(self) -> int:
        """Wait for the end, and return the exit status."""
        status = self.process.wait(LIMIT_S)
        while select.select([self.ours], [], [], 0.0)[0]:
            self.written += os.read(self.ours, 65_536)
        return status


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_series(tmp_path, "ab" * 32)
    return tmp_path


def test_keys_reach_the_node_and_q_restores_the_terminal(home: Path) -> None:
    with node(home) as commands, Session(home) as session:
        session.until("● sunny-koala you")
        assert ENTER.encode() in session.written
        session.press("p")
        session.until("paused until you resume")
        session.press("f")
        session.until(f"{FINISH} (y/n)")
        session.press("n")
        session.until("not finished: the node goes on")
        session.press("q")
        assert session.ended() == 0
        assert session.written.decode().endswith(LEAVE)
        assert termios.tcgetattr(session.theirs) == session.before
        assert set(commands) == {"status", "pause"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_restores_the_terminal(home: Path, number: signal.Signals) -> None:
    with node(home), Session(home) as session:
        session.until("● sunny-koala you")
        session.process.send_signal(number)
        assert session.ended() == 130
        assert session.written.decode().endswith(LEAVE)
        assert termios.tcgetattr(session.theirs) == session.before


def test_crash_restores_the_terminal_before_the_error_is_shown(home: Path) -> None:
    """The peers of a status are sorted by name. A name that is no text is a bug of the node."""
    broken = replace(
        made_status(),
        members=tuple(
            replace(each, peer_name=name)  # type: ignore[arg-type]
            for each, name in zip(made_status().members, ("one", 2, "three"), strict=True)
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.cli.watching.test_top.made_status", lambda: broken)
        with node(home), Session(home) as session:
            assert session.ended() == 1
            shown = session.written.decode()
            assert "error[BUG]" in shown.partition(LEAVE)[2]
            assert termios.tcgetattr(session.theirs) == session.before


class Sent(Poller):
    """A poller that only remembers what it is asked to send."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"), lambda: None)
        self.sent = list[str]()
        self.known = Known(NOW, made_status())

    def send(self, command: str) -> None:
        self.sent.append(command)


def pressed(*keys: str) -> tuple[View | None, list[str]]:
    poller = Sent()
    return after_keys(View(), keys, poller), poller.sent


def test_each_key_does_one_thing() -> None:
    assert pressed("p") == (View(notice="pause …"), ["pause"])
    assert pressed("r") == (View(notice="resume …"), ["resume"])
    assert pressed("f") == (View(asks=FINISH), [])
    assert pressed("f", "y") == (View(notice="finishing …"), ["finish"])
    assert pressed("f", "q") == (View(notice="not finished: the node goes on"), [])
    assert pressed("?", "x") == (View(), [])
    assert pressed("?", "?", "h") == (View(helps=True), [])
    assert pressed("q", "p") == (None, [])
    assert pressed("") == (None, [])
    assert pressed(*["down"] * 9, "up") == (View(scrolled=1), [])
    assert pressed("up", "j", "k") == (View(), [])


def raises(error: Exception) -> Callable[[str], dict[str, Any]]:
    def ask(command: str) -> dict[str, Any]:
        raise error

    return ask


def test_answers_are_sentences_also_from_an_older_node() -> None:
    assert answer_to("pause", lambda command: {"done": "paused"}) == "paused"
    assert answer_to("pause", lambda command: {}) == "pause: done"
    old = RemoteProtocolError("the node refused: unknown command; the commands are status")
    assert answer_to("pause", raises(old)) == (
        "this node's version does not know pause: restart it with this version"
    )
    assert answer_to("finish", raises(TryLater("it hangs"))) == "finish failed: it hangs"


def test_one_screen_can_be_printed_without_a_terminal(p2ptrain: Command, home: Path) -> None:
    with node(home):
        shown = p2ptrain("top", "--once", "--home", home)
        told = p2ptrain("top", "--json", "--home", home).json
        refused = p2ptrain("top", "--home", home)
    assert shown.out.splitlines()[0].split() == ["metagene-mini", "sunny-koala"]
    assert "p pause" not in shown.out
    assert (told["schema"], told["status"]["run_name"], len(told["steps"])) == (
        1,
        "metagene-mini",
        30,
    )
    assert (refused.code, "error[NO-TERMINAL]" in refused.err) == (2, True)


def test_home_without_a_node_is_named(p2ptrain: Command, home: Path) -> None:
    done = p2ptrain("top", "--home", home)
    assert (done.code, "error[NO-NODE]" in done.err) == (75, True)

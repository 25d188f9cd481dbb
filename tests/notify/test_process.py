"""The process beside a node sends what happens, and how the node ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.notify.targets import Target, save_targets
from p2ptrain.observe.journal import Journal
from tests.notify.made import Server, event, served, write


@pytest.fixture
def server() -> Iterator[Server]:
    with served() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, server: Server) -> Home:
    home = Home(tmp_path)
    causes = ("stalled", "ended")
    save_targets(home.notify, [Target("one", server.url(), causes)])
    home.notify_state.write_text('{"event": 0, "step": 0}')
    return home


@contextmanager
def sender(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """Run the process. It must end with its input, without a fault."""
    words = [sys.executable, "-m", "p2ptrain.notify", "--home", str(home.root)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process
    assert process.returncode == 0


def test_events_are_sent_while_the_node_runs(home: Home, server: Server) -> None:
    with Journal(home.journal) as journal, sole_use(home):
        with sender(home) as process:
            write(home, event("stall", "It waits.", time.time()))
            assert server.texts(1) == ["It waits."]
            assert psutil.Process(process.pid).nice() >= 10
        journal.write("stopped", code="", reason="")
    with sender(home):  # Waits for the end of the process before.
        write(home, event("end", "It is over.", time.time()))
        assert server.texts(1) == ["It waits.", "It is over."]
    assert [
        each for each in psutil.Process().children() if "p2ptrain.notify" in each.cmdline()
    ] == []


def test_end_of_the_node_is_sent_after_the_node_has_gone(home: Home, server: Server) -> None:
    with Journal(home.journal) as journal, sole_use(home):
        with sender(home):
            write(home, event("stall", "It waits.", time.time()))
            server.texts(1)
        journal.write("stopped", code="AUTH-REVOKED", reason="you were removed")
        told = "The node has ended: you were removed (AUTH-REVOKED)."
        assert server.texts(1) == ["It waits.", told]


def test_killed_node_is_told(home: Home, server: Server) -> None:
    with sender(home):
        write(home, event("stall", "It waits.", time.time()))
        server.texts(1)
    assert server.texts(1)[1].startswith("The node has ended without a word: it was killed")


def test_process_ends_when_the_last_target_is_removed(home: Home, server: Server) -> None:
    with sender(home) as process:
        save_targets(home.notify, [])
        assert process.wait(60) == 0
    assert server.got == []


def test_file_that_others_can_read_is_refused(home: Home) -> None:
    home.notify.chmod(0o644)
    words = [sys.executable, "-m", "p2ptrain.notify", "--home", str(home.root)]
    done = subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"no messages can be sent: [NOTIFY] other users can read the list" in done.stderr

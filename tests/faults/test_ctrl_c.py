"""A node ends after Ctrl-C in every state, says so, and leaves nothing running."""

from __future__ import annotations

import fcntl
import pty
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from p2ptrain.identity import Identity, load_or_create
from p2ptrain.node.joining.consent import HOW_TO_ANSWER
from p2ptrain.run import Run
from tests.faults.answering import at, says_nothing, server
from tests.faults.conftest import JOINER
from tests.faults.processes import NodeProcess, home_of, rot_genesis, running, wait_until
from tests.faults.screen import Screen

LEAVE_S = 60.0
"""Time limit in seconds. Normally a node leaves within a moment, but it takes longer on a busy
machine.
"""


def left_cleanly(node: NodeProcess, state: str = "") -> Screen:
    """Wait until the node says that it is in `state`, if given. Check that it then ends without an
    error, with status 0, and leaves no process, socket or lock behind.
    """

    def is_there() -> bool:
        status = node.status()
        return status is not None and status["state_name"] == state

    if state:
        wait_until(f"the state {state!r}", is_there)
    children = node.descendants()
    node.interrupt()
    screen = node.ended(deadline_s=LEAVE_S)
    nothing_is_left(node, children)
    assert screen.status == 0
    assert "error" not in screen.err
    assert "Traceback" not in screen.err
    stopped = node.saw("stopped")
    assert (stopped["code"], stopped["reason"]) == ("", "")
    return screen


def nothing_is_left(node: NodeProcess, children: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(children, timeout=LEAVE_S)
    assert alive == []
    assert not (node.home / "control.sock").exists()
    with (node.home / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_ctrl_c_works_while_connecting(tmp_path: Path) -> None:
    with server(says_nothing) as port, running(tmp_path / "home", "--bootstrap", at(port)) as node:
        screen = left_cleanly(node, "connecting")
        assert f"/tcp/{port}/p2p/" in screen.err
        assert not (node.home / "run" / "manifest.signed").exists()


def test_ctrl_c_works_at_the_consent_prompt(seed: NodeProcess, tmp_path: Path) -> None:
    user, terminal = pty.openpty()
    with open(user, "rb"), open(terminal, "rb"):
        address = seed.address()
        with running(tmp_path / "home", "--bootstrap", address, terminal=terminal) as node:
            node.said("Do you want to take part? [y/N]")
            status = wait_until("the node's status", node.status)
            assert status["waits_for"] == HOW_TO_ANSWER
            left_cleanly(node, "awaiting your answer")
            assert not (node.home / "run" / "manifest.signed").exists()


def test_ctrl_c_works_while_waiting_for_approval(seed: NodeProcess, tmp_path: Path) -> None:
    with running(tmp_path / "home", "--bootstrap", seed.address()) as node:
        node.said("p2ptrain peers approve")
        left_cleanly(node, "awaiting approval")
        assert (node.home / "run" / "manifest.signed").exists(), "a restart asks for no consent"
        assert node.find("left") is None, "it was no member"


def test_ctrl_c_works_while_fetching_and_while_serving(
    organiser: Path, run: Run, tmp_path: Path
) -> None:
    rot_genesis(organiser, run)
    with running(organiser, "--seed") as rotten:
        way_in = ("--seed", "--bootstrap", rotten.address())
        with running(home_of(JOINER, tmp_path), *way_in) as node:
            node.said("waits for a peer that has them")
            left_cleanly(node, "fetching snapshot")
        left_cleanly(rotten, "serving")


@pytest.fixture
def trained(
    seed: NodeProcess, trainers: Iterator[Identity], tmp_path: Path
) -> Iterator[NodeProcess]:
    """Yield a node with a running trainer."""
    home = home_of(next(trainers), tmp_path)
    with running(home, "--bootstrap", seed.address(), "--device", "cpu") as node:
        node.saw("inner-step", deadline_s=180.0)
        yield node


def test_ctrl_c_works_while_training(trained: NodeProcess) -> None:
    trainers = trained.descendants()
    screen = left_cleanly(trained)
    assert trainers
    assert "Leaving" in screen.err
    assert trained.saw("left")


def test_second_ctrl_c_leaves_at_once(trained: NodeProcess, seed: NodeProcess) -> None:
    """The node votes and the seed is frozen, so no quorum can agree that the node leaves."""

    me = load_or_create(trained.home / "identity.key").peer

    def votes() -> bool:
        list(trained.new_events())
        return any(me in event.get("voters", ()) for event in trained.events)

    wait_until("the training node to become a voter", votes)
    assert seed.process is not None
    children = trained.descendants()
    seed.process.send_signal(signal.SIGSTOP)
    try:
        trained.interrupt()
        trained.said("Ctrl-C again to leave now")
        trained.interrupt()
        screen = trained.ended(deadline_s=LEAVE_S)
    finally:
        seed.process.send_signal(signal.SIGCONT)
    nothing_is_left(trained, children)
    assert screen.status == 0
    assert "Traceback" not in screen.err
    assert trained.saw("stopped")
    assert trained.find("left") is None

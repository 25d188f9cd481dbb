"""A tiny published run, a seed that serves it, and functions that run a command in this process."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from p2ptrain.cli.main import main
from p2ptrain.identity import Identity
from p2ptrain.run import Run, SignedAllowlist, load_allowlist, load_run
from tests.faults.processes import ON_LOOPBACK, NodeProcess, running
from tests.faults.screen import Screen

FAULT_S = 90.0
"""Seconds within which every fault must be reported, even on a busy machine. Normally a report
takes at most ten seconds, the time that a node gives a silent address.
"""

END_S = 30.0
"""Time limit for threads that have finished their work to end."""

THREADS_THAT_STAY = ("Trio thread", "_background_cleanup")
"""Names of threads that trio keeps for reuse, and of a daemon thread of libp2p."""

RUN_TOML = """
run = { name = "faults" }
model = { vocab = 300, layers = 1, width = 16, heads = 2, kv_heads = 1, ffn = 32, sequence = 16 }
data = { source = "text.txt", validation_blocks = 2 }
inner = { steps = 2, batch_sequences = 2, lr = 3e-3 }
outer = { steps = 100_000 }
policy = { participants_min = 1, grace_s = 1.0, round_timeout_s = 1.0, chunk_bytes = 65_536 }
"""
TEXT = "".join(f"{number**3} bottles of {number % 7} kinds\n" for number in range(400))

MEMBER = Identity.from_seed(b"member".ljust(32))
JOINER = Identity.from_seed(b"joiner".ljust(32))
TRAINERS = tuple(Identity.from_seed(b"trainer %d" % number + bytes(23)) for number in range(2))
"""Peers on the allowlist besides the organiser, which is the only founder."""

FEW_FILES_AT_FIRST = "ulimit -S -n 64"
"""A shell command that sets a low limit on open files, as on some systems. A node raises this limit
as far as it is allowed to."""

Here = Callable[..., Screen]


def ended(threads: Iterable[threading.Thread]) -> bool:
    """Return whether all of these threads end within END_S, except those in THREADS_THAT_STAY."""
    left = [
        thread for thread in threads if not any(known in thread.name for known in THREADS_THAT_STAY)
    ]
    for thread in left:
        thread.join(END_S)
    return not any(thread.is_alive() for thread in left)


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """Return a function that runs a command in this process. The command must end within FAULT_S
    and leave no thread behind.
    """
    monkeypatch.delenv("P2PTRAIN_HOME", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*words: object) -> Screen:
        before = set(threading.enumerate())
        late = threading.Event()

        def interrupt() -> None:
            late.set()
            os.kill(os.getpid(), signal.SIGINT)

        alarm = threading.Timer(FAULT_S, interrupt)
        alarm.start()
        capsys.readouterr()
        status = main([str(word) for word in words])
        alarm.cancel()
        alarm.join()
        written = capsys.readouterr()
        assert not late.is_set(), (
            f"the fault was not reported within {FAULT_S:.0f} s:\n{written.err}"
        )
        assert ended(thread for thread in threading.enumerate() if thread not in before)
        return Screen(status, written.out, written.err)

    return run


@pytest.fixture
def node_here(here: Here, tmp_path: Path) -> Here:
    """Return a function that runs `p2ptrain node` in this process, in a new home, on loopback
    only.
    """

    def run(*words: object, home: Path = tmp_path / "home") -> Screen:
        return here("node", "--home", home, "--yes", "--no-page", *ON_LOOPBACK, *words)

    return run


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the organiser's home (the folder with a node's files). All tests share it. A test that
    changes the home must use `organiser` instead.
    """
    folder = tmp_path_factory.mktemp("published")
    (folder / "text.txt").write_text(TEXT)
    (folder / "run.toml").write_text(RUN_TOML)
    allowed = [word for who in (MEMBER, JOINER, *TRAINERS) for word in ("--allow", who.peer)]
    words = ["--home", str(folder / "organiser"), *allowed]
    assert main(["run", "publish", str(folder / "run.toml"), *words]) == 0
    return folder / "organiser"


@pytest.fixture
def organiser(published: Path, tmp_path: Path) -> Path:
    """Return a copy of the organiser's home, for this test only."""
    return Path(shutil.copytree(published, tmp_path / "organiser"))


@pytest.fixture(scope="session")
def run(published: Path) -> Run:
    loaded = load_run(published / "run" / "manifest.signed")
    assert loaded is not None
    return loaded


@pytest.fixture(scope="session")
def allowlist(published: Path, run: Run) -> SignedAllowlist:
    loaded = load_allowlist(published / "run" / "allowlist.signed", run)
    assert loaded is not None
    return loaded


@pytest.fixture(scope="session")
def trainers() -> Iterator[Identity]:
    """Return an iterator that gives each test a different volunteer."""
    return iter(TRAINERS)


@pytest.fixture(scope="session")
def seed(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Run a seed that serves the run to all tests."""
    home = tmp_path_factory.mktemp("seed") / "home"
    shutil.copytree(published, home)
    with running(home, "--seed", limits=FEW_FILES_AT_FIRST) as node:
        node.address()
        yield node

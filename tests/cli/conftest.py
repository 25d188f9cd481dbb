"""Fixtures: a published run, a function that runs a command, and a stand-in for a running node."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.cli.main import main
from p2ptrain.cli.outside import USUAL, Outside
from p2ptrain.config.samples import sample
from p2ptrain.testing.published import policy, publish
from tests.cli.histories import WrittenHistory, make_history


@dataclass(frozen=True)
class Outcome:
    """The result of a command: its exit code and its output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


Command = Callable[..., Outcome]


@pytest.fixture
def p2ptrain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs a command in this process, without P2PTRAIN_HOME in the
    environment."""
    monkeypatch.delenv("P2PTRAIN_HOME", raising=False)

    def run(*words: object, around: Outside = USUAL) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words], around)
        written = capsys.readouterr()
        return Outcome(code, written.out, written.err)

    return run


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def history(home: Home) -> WrittenHistory:
    """Return a history of five outer steps in `home`, with a snapshot after every second one."""
    rules = policy(participants_min=1, snapshot_every=2)
    return make_history(home, publish(home, rules=rules, steps=99), 5)


RUN_TOML = sample("tiny").replace("limit_mb = 0.5", "limit_mb = 0.06")


@pytest.fixture(scope="session")
def _published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("organiser")
    # Tests write ledgers of this run by hand, without claims.
    (home / "run.toml").write_text(f"{RUN_TOML}\n[trust]\nclaims = false\n")
    assert main(["run", "publish", str(home / "run.toml"), "--home", str(home)]) == 0
    return home


@pytest.fixture
def organiser_home(_published: Path, tmp_path: Path) -> Path:
    """Return a home with a published run, for this test alone."""
    home = tmp_path / "organiser"
    shutil.copytree(_published, home)
    return home


@contextmanager
def fake_node(
    home: Path, *replies: bytes, first: Callable[[], object] = lambda: None
) -> Iterator[list[dict[str, Any]]]:
    """Serve a node's control socket in `home`: answer the requests with `replies`, one after the
    other, and call `first` before each reply. Yield the list of the requests received so far."""
    requests: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "control.sock"))
        listener.listen()

        def answer() -> None:
            for reply in replies:
                client, _ = listener.accept()
                with client, client.makefile("rb") as lines:
                    requests.append(json.loads(lines.readline()))
                    first()
                    client.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield requests
        finally:
            thread.join(100)
            assert not thread.is_alive(), "the command asked less often than the test expected"

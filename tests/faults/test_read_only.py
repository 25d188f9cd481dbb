"""On a read-only disk, commands that only read work, and all other commands fail with an error
code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.ids import Digest
from tests.faults.conftest import Here
from tests.faults.test_home import SEED, contents

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGING = {"os.rename", "os.remove", "os.rmdir", "os.truncate"}
ANY = Digest("ab" * 32)

SetReadOnly = Callable[[Path], None]


class ReadOnlyFolders:
    """Makes Python refuse changes of `folders`, as if they were on a disk that is mounted
    read-only. Python calls an audit hook before each such system call.

    Mode bits would not restrict root, and a real mount needs root.
    """

    def __init__(self) -> None:
        self.folders: list[str] = []
        sys.addaudithook(self._refuse_changes)  # A hook stays until the process ends.

    def holds(self, path: object) -> bool:
        name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        return any(f"{name}/".startswith(f"{folder}/") for folder in self.folders)

    def _refuse_changes(self, event: str, words: tuple[Any, ...]) -> None:
        if not self.folders or not words or not self.holds(path := words[0]):
            return
        if event == "open":
            made, flags = not os.path.exists(path), words[2]
            refused = bool(flags & ~os.O_CREAT & WRITING or (flags & os.O_CREAT and made))
        else:
            refused = event in CHANGING or (event == "os.mkdir" and not os.path.exists(path))
        if refused:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))


@pytest.fixture(scope="session")
def read_only_folders() -> ReadOnlyFolders:
    return ReadOnlyFolders()


@pytest.fixture
def set_read_only(
    read_only_folders: ReadOnlyFolders, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SetReadOnly]:
    access = os.access

    def is_allowed(path: Any, mode: int, **how: Any) -> bool:
        refused = mode & os.W_OK and read_only_folders.holds(path)
        return access(path, mode, **how) and not refused

    monkeypatch.setattr(os, "access", is_allowed)  # There is no audit event for this call.
    yield lambda folder: read_only_folders.folders.append(str(folder))
    read_only_folders.folders.clear()


CHANGES = [SEED, ("store", "gc"), ("store", "pin", ANY), ("store", "unpin", ANY)]


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_command_that_would_change_a_read_only_home_is_refused(
    organiser: Path, here: Here, set_read_only: SetReadOnly, words: tuple[str, ...]
) -> None:
    before = contents(organiser)
    set_read_only(organiser)
    screen = here(*words, "--home", organiser)
    screen.is_error("HOME", 2)
    assert "read-only" in screen.err
    assert contents(organiser) == before


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_command_that_would_change_a_read_only_store_is_refused(
    organiser: Path, here: Here, set_read_only: SetReadOnly, words: tuple[str, ...]
) -> None:
    before = contents(organiser / "store")
    set_read_only(organiser / "store")
    screen = here(*words, "--home", organiser)
    screen.is_error("STORE-READONLY", 4)
    assert "read-only" in screen.err
    assert contents(organiser / "store") == before


@pytest.mark.parametrize(
    "words",
    [
        *[("store", "du"), ("store", "check"), ("verify",), ("ledger", "show"), ("ckpt", "ls")],
        ("id",),
    ],
    ids=" ".join,
)
def test_reading_commands_work_on_a_read_only_disk(
    organiser: Path, here: Here, set_read_only: SetReadOnly, words: tuple[str, ...]
) -> None:
    told = here(*words, "--home", organiser)
    set_read_only(organiser)
    screen = here(*words, "--home", organiser)
    assert (screen.status, screen.out) == (told.status, told.out)
    assert screen.status in (0, 5)

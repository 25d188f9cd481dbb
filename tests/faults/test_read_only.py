"""On a read-only disk, commands that only read work, and all other commands fail with an error
code."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.ids import Digest
from tests.faults.conftest import Here
from tests.faults.test_home import SEED, contents

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
ANY = Digest("ab" * 32)


class ReadOnly:
    """Make the system treat `folder` as if it were on a disk that is mounted read-only.

    Mode bits would not restrict root, and a real mount needs root.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = str(folder)
        for name in ("replace", "rename", "unlink", "remove", "rmdir", "truncate"):
            monkeypatch.setattr(os, name, self._refusing(getattr(os, name), lambda *_: True))
        absent = self._refusing(os.mkdir, lambda path, *_: not os.path.exists(path))
        monkeypatch.setattr(os, "mkdir", absent)
        monkeypatch.setattr(os, "open", self._refusing(os.open, _is_writing))
        opened = self._refusing(io.open, lambda path, mode="r", *_: bool(set(mode) & set("wax+")))
        monkeypatch.setattr(io, "open", opened)
        monkeypatch.setattr(builtins, "open", opened)
        access = os.access
        monkeypatch.setattr(
            os,
            "access",
            lambda path, mode, **how: (
                access(path, mode, **how) and not (mode & os.W_OK and self._has(path))
            ),
        )

    def _has(self, path: Any) -> bool:
        name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        return f"{name}/".startswith(f"{self._folder}/")

    def _refusing(self, call: Callable[..., Any], writes: Callable[..., bool]) -> Any:
        def refused(path: Any, *words: Any, **named: Any) -> Any:
            if self._has(path) and writes(path, *words, *named.values()):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))
            return call(path, *words, **named)

        return refused


def _is_writing(path: Any, flags: int, *_: Any) -> bool:
    made = not os.path.exists(path)
    return bool(flags & ~os.O_CREAT & WRITING or (flags & os.O_CREAT and made))


CHANGES = [SEED, ("store", "gc"), ("store", "pin", ANY), ("store", "unpin", ANY)]


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_command_that_would_change_a_read_only_home_is_refused(
    organiser: Path, here: Here, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    before = contents(organiser)
    ReadOnly(organiser, monkeypatch)
    screen = here(*words, "--home", organiser)
    screen.is_error("HOME", 2)
    assert "read-only" in screen.err
    assert contents(organiser) == before


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_command_that_would_change_a_read_only_store_is_refused(
    organiser: Path, here: Here, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    before = contents(organiser / "store")
    ReadOnly(organiser / "store", monkeypatch)
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
    organiser: Path, here: Here, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    told = here(*words, "--home", organiser)
    ReadOnly(organiser, monkeypatch)
    screen = here(*words, "--home", organiser)
    assert (screen.status, screen.out) == (told.status, told.out)
    assert screen.status in (0, 5)

"""Faults in a node's home (the folder with its files) are reported before the node changes any file
in it.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.run import Run, save_run
from p2ptrain.store import RecordLog, Store
from tests.faults.conftest import Here
from tests.faults.screen import Screen

SEED = (
    *("node", "--seed", "--no-page"),
    *("--listen", "/ip4/127.0.0.1/tcp/0", "--data-listen", "127.0.0.1:0"),
)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files in the folder that a node must not change when it cannot
    start.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("journal.jsonl", "lock")
    }


def test_second_node_in_a_home_is_refused(organiser: Path, here: Here) -> None:
    with sole_use(Home(organiser)):
        screen = here(*SEED, "--home", organiser)
    screen.is_error("ID-IN-USE", 8)
    assert f"process id is {os.getpid()}" in screen.evidence
    assert "different --home" in screen.do


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def shorten(path: Path, size: int) -> None:
    os.truncate(path, size)


def garbage_record(path: Path) -> None:
    RecordLog(path).append([b'{"not":"an entry"}'])


def torn_header(path: Path) -> None:
    path.write_bytes(b"p2plog1")


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


def make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


Damage = Callable[[Path], object]
DAMAGES: list[tuple[str, Damage, str, int, str]] = [
    ("identity.key", lambda path: path.chmod(0o644), "ID-MODE", 2, "chmod 600"),
    ("identity.key", lambda path: shorten(path, 31), "ID-BROKEN", 2, "backup"),
    ("run/manifest.signed", lambda path: overwrite(path, 200, b"X"), "RUN-FILE", 2, "move"),
    ("run/manifest.signed", lambda path: shorten(path, 100), "RUN-FILE", 2, "move"),
    ("run/manifest.signed", make_folder, "OS", 4, ""),
    ("run/allowlist.signed", lambda path: overwrite(path, 120, b"X"), "RUN-FILE", 2, "move"),
    ("ledger.log", torn_header, "LOG-CORRUPT", 4, "move"),
    ("ledger.log", garbage_record, "LEDGER-BROKEN", 4, "move"),
    ("votes.log", torn_header, "LOG-CORRUPT", 4, "move"),
    ("votes.log", garbage_record, "LEDGER-BROKEN", 4, "move"),
    ("store/head", lambda path: path.write_bytes(b"\x00" * 40), "STORE-HEAD", 4, "move"),
    ("store", replace_by_file, "STORE-IO", 4, "move"),
]


@pytest.mark.parametrize(
    ("name", "damage", "code", "status", "do"),
    DAMAGES,
    ids=[f"{row[0].rpartition('/')[2]}-{row[2]}" for row in DAMAGES],
)
def test_damaged_file_is_named_and_not_changed(
    name: str, damage: Damage, code: str, status: int, do: str, organiser: Path, here: Here
) -> None:
    damage(organiser / name)
    before = contents(organiser)
    screen = here(*SEED, "--home", organiser)
    screen.is_error(code, status)
    assert name.rpartition("/")[2] in screen.what + screen.evidence + screen.do
    assert do in screen.do
    assert before.items() <= contents(organiser).items()


def test_store_in_use_by_another_process_is_reported(organiser: Path, here: Here) -> None:
    with Store(organiser / "store"):
        screen = here(*SEED, "--home", organiser)
    screen.is_error("STORE-BUSY", 4)
    assert "--home" in screen.do


def test_allowlist_of_another_run_is_reported(organiser: Path, run: Run, here: Here) -> None:
    other = Run.publish(load_or_create(organiser / "identity.key"), replace(run.manifest, name="b"))
    save_run(organiser / "run" / "manifest.signed", other)
    screen = here(*SEED, "--home", organiser)
    screen.is_error("RUN-FILE", 2)
    assert "different run" in screen.what
    assert run.id in screen.evidence


WRITERS = (["node", "--bootstrap", "x"], ["id"])
LOOKERS = (
    ["run", "show"],
    ["run", "amend", "x", "--from-step", "9"],
    ["allow", "list"],
    ["allow", "remove", Identity.from_seed(bytes(32)).peer],
    ["ckpt", "pin"],
    ["store", "pin", "ab" * 32],
)
"""Commands that do not write in a home without a run. (In a home with a run, some of them
write.)"""
CANNOT_BE = ("/proc/home", "/dev/null/home")


def first(words: list[str]) -> str:
    return words[0]


def is_no_home(screen: Screen, place: Path) -> None:
    screen.is_error("HOME", 2)
    assert str(place) in screen.what
    assert "--home" in screen.do


@pytest.mark.parametrize("words", WRITERS, ids=first)
@pytest.mark.parametrize("place", CANNOT_BE)
def test_home_that_cannot_be_made_is_reported(words: list[str], place: str, here: Here) -> None:
    is_no_home(here(*words, "--home", place), Path(place))


@pytest.mark.parametrize("words", LOOKERS, ids=" ".join)
@pytest.mark.parametrize("place", CANNOT_BE)
def test_reading_command_says_that_there_is_no_home(
    words: list[str], place: str, here: Here
) -> None:
    screen = here(*words, "--home", place)
    screen.is_error("RUN-NONE", 2)
    assert place in screen.what
    assert "no such folder" in screen.evidence


@pytest.mark.parametrize("words", LOOKERS, ids=" ".join)
def test_mistyped_home_leaves_nothing_behind(words: list[str], here: Here, tmp_path: Path) -> None:
    here(*words, "--home", tmp_path / "typo").is_error("RUN-NONE", 2)
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("words", [*WRITERS, *LOOKERS], ids=first)
def test_home_that_is_a_file_is_reported(words: list[str], here: Here, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    is_no_home(here(*words, "--home", tmp_path / "file"), tmp_path / "file")


def test_port_in_use_is_reported(organiser: Path, here: Here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        screen = here(
            *("node", "--seed", "--home", organiser, "--data-listen", "127.0.0.1:0"),
            *("--listen", f"/ip4/127.0.0.1/tcp/{port}"),
        )
    screen.is_error("PORT-IN-USE", 2)
    assert str(port) in screen.what
    assert "another port" in screen.do


def test_data_port_in_use_is_reported(organiser: Path, here: Here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        screen = here(
            *("node", "--seed", "--home", organiser, "--listen", "/ip4/127.0.0.1/tcp/0"),
            *("--data-listen", f"127.0.0.1:{port}"),
        )
    screen.is_error("PORT-IN-USE", 2)
    assert str(port) in screen.what
    assert "--data-listen" in screen.do


@pytest.mark.parametrize("words", [["status"], ["status", "--json"]])
def test_status_without_a_running_node_is_reported(
    words: list[str], here: Here, tmp_path: Path
) -> None:
    screen = here(*words, "--home", tmp_path / "nowhere")
    assert (screen.code, screen.status) == ("NO-NODE", 75)
    assert "p2ptrain node" in screen.do
    assert not (tmp_path / "nowhere").exists()

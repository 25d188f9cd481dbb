"""A home (the folder with a node's files) that another user can write to is refused. The error says
how to repair it."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.archive.home_safety import refuse_unsafe_home
from p2ptrain.cli.homes import open_home
from p2ptrain.errors import ConfigError
from p2ptrain.observe.journal import Journal


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "my home")


def refusal_of(home: Home) -> ConfigError:
    """Return the error with which this home is refused."""
    with pytest.raises(ConfigError) as caught, sole_use(home):
        pytest.fail("the home was used")
    assert (caught.value.code, caught.value.exit_code) == ("HOME-UNSAFE", 2)
    return caught.value


def repair(error: ConfigError) -> None:
    """Run the command that the error suggests."""
    subprocess.run(error.do, shell=True, check=True)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
@pytest.mark.parametrize("name", ["", "run", "store"])
def test_folder_that_others_can_write_to_is_refused_until_it_is_repaired(
    home: Home, name: str, mode: int
) -> None:
    folder = home.root / name
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    error = refusal_of(home)
    assert error.evidence == (f"its mode is {mode:o}: other users can write to it",)
    repair(error)
    with sole_use(home):
        assert stat.S_IMODE(folder.stat().st_mode) & 0o022 == 0


def test_folder_of_a_different_user_is_refused(home: Home) -> None:
    owner = home.root.stat().st_uid
    with pytest.raises(ConfigError) as caught:
        refuse_unsafe_home(home.root, [], user=owner + 1)
    assert caught.value.code == "HOME-UNSAFE"
    assert caught.value.evidence == (
        f"it belongs to user {owner}, and this process is user {owner + 1}",
    )
    assert caught.value.do.startswith(f"chown -R {owner + 1} '{home.root}'")


@pytest.mark.parametrize("name", ["lock", "journal.jsonl", "votes.log"])
def test_link_to_a_file_elsewhere_is_refused_and_the_file_is_unchanged(
    home: Home, tmp_path: Path, name: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("of another user")
    (home.root / name).symlink_to(precious)
    error = refusal_of(home)
    assert error.evidence == (f"{home.root / name} is a symbolic link to {precious}",)
    assert precious.read_text() == "of another user"
    repair(error)
    with sole_use(home):
        pass
    assert precious.read_text() == "of another user"


def test_store_in_a_linked_folder_is_accepted(home: Home, tmp_path: Path) -> None:
    larger_disk = tmp_path / "larger disk"
    larger_disk.mkdir(mode=0o700)
    home.store.symlink_to(larger_disk)
    with sole_use(home):
        pass


def test_journal_does_not_follow_a_link(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "journal.jsonl"
    precious.write_text("of another user")
    path.symlink_to(precious)
    with Journal(path) as journal:
        journal.write("started")
        assert journal.lost == 1
    assert precious.read_text() == "of another user"


def test_journal_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.touch(mode=0o644)  # Earlier versions created it with this mode.
    previous = os.umask(0)
    try:
        with Journal(path, bytes_max=100) as journal:
            for _ in range(3):
                journal.write("started", note="n" * 60)
    finally:
        os.umask(previous)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert modes == {"journal.jsonl": 0o600, "journal.jsonl.1": 0o600}


def test_unsafe_home_is_refused_for_writing_but_not_for_reading(
    home: Home,
) -> None:
    home.root.chmod(0o777)
    with pytest.raises(ConfigError, match="HOME-UNSAFE"):
        open_home(home.root)
    assert open_home(home.root, to_write=False).root == home.root

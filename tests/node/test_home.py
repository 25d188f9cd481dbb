"""A home is the folder with a node's files. Only one node at a time can use it, and other users
cannot read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.errors import IdentityInUse
from tests.process_limits import no_file_grows


def test_error_of_a_second_node_names_the_process_id_of_the_first(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "home")
    with sole_use(home), pytest.raises(IdentityInUse) as caught, sole_use(home):
        pass
    error = caught.value
    assert (error.code, error.exit_code) == ("ID-IN-USE", 8)
    assert error.evidence == (f"its process id is {os.getpid()}",)
    assert str(home.root) in error.do


def test_home_can_be_used_again_after_its_node_ended_with_an_error(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with pytest.raises(ZeroDivisionError), sole_use(home):
        raise ZeroDivisionError
    with sole_use(home):
        pass


def test_lock_file_of_a_killed_node_does_not_block_the_next_one(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (home.root / "lock").write_text("4194305")
    with sole_use(home):
        assert (home.root / "lock").read_text() == str(os.getpid())


def test_home_can_be_locked_on_a_full_disk(tmp_path: Path) -> None:
    """Otherwise commands that free disk space could not run. The lock just lacks the process id."""
    home = Home(tmp_path / "home")
    with no_file_grows(), sole_use(home), pytest.raises(IdentityInUse) as caught, sole_use(home):
        pass
    assert caught.value.evidence == ("its process id is unknown",)


def test_new_home_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    home = Home(tmp_path / "deep" / "home")
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
    assert home.run.is_dir()


def test_every_path_of_a_home_is_inside_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    paths = [home.identity, home.run, home.manifest, home.allowlist, home.store, home.ledger]
    paths += [home.votes, home.peers, home.journal, home.control]
    assert all(path.is_relative_to(tmp_path) for path in paths)
    assert len(set(paths)) == len(paths)

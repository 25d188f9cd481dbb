"""Faults of the machine: a full disk and corrupt chunks."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from p2ptrain.run import Run
from p2ptrain.store import Store
from p2ptrain.testing.node_process import command
from tests.faults.conftest import JOINER, MEMBER, Here
from tests.faults.processes import home_of, rot_genesis, running
from tests.faults.screen import Screen


def test_full_disk_does_not_leave_a_partial_key(here: Here, tmp_path: Path) -> None:
    words = ["sh", "-c", 'ulimit -f 0 && exec "$@"', "sh", *command("id", "--home", str(tmp_path))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    Screen(ended.returncode, ended.stdout, ended.stderr).is_error("DISK-LOW", 4)
    assert list(tmp_path.glob("identity*")) == []
    assert here("id", "--home", tmp_path).status == 0


def test_corrupt_chunk_is_fetched_from_another_store(
    published: Path, organiser: Path, run: Run, tmp_path: Path
) -> None:
    genesis = run.manifest.genesis
    chunk = rot_genesis(organiser, run)
    whole = home_of(JOINER, tmp_path)
    shutil.copytree(published / "store", whole / "store")
    with ExitStack() as nodes:
        rotten = nodes.enter_context(running(organiser, "--seed"))
        way_in = ("--seed", "--bootstrap", rotten.address())
        empty = nodes.enter_context(running(home_of(MEMBER, tmp_path), *way_in))
        delayed = empty.saw("fetch-delayed", digest=genesis)
        nodes.enter_context(running(whole, *way_in))
        empty.saw("snapshot-fetched")
        found = rotten.saw("chunk-damaged", digest=genesis)
        rotten.saw("caught-up")
    assert "no source has the chunks that are still missing (1)" in delayed["reason"]
    assert delayed["evidence"] == [f"{run.manifest.organiser} does not have 1 of the chunks"]
    assert chunk in found["reason"]
    with Store(organiser / "store") as store:
        assert store.read_blob(genesis)

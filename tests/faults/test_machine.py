"""What the machine refuses: files, room, and chunks that are not what they were."""

from __future__ import annotations

import resource
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import psutil

from p2ptrain.ids import Digest
from p2ptrain.run import Run
from p2ptrain.store import Store
from p2ptrain.testing.demo.process import command
from tests.faults.conftest import JOINER, MEMBER, Here
from tests.faults.processes import NodeProcess, home_of, running
from tests.faults.screen import Screen


def test_a_disk_too_full_for_a_key_leaves_no_half_of_one(here: Here, tmp_path: Path) -> None:
    words = ["sh", "-c", 'ulimit -f 0 && exec "$@"', "sh", *command("id", "--home", str(tmp_path))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=15, check=False)
    Screen(ended.returncode, ended.stdout, ended.stderr).is_error("DISK-LOW", 4)
    assert list(tmp_path.glob("identity*")) == []
    assert here("id", "--home", tmp_path).status == 0


def damage(home: Path, chunk: Digest) -> None:
    """Flip a bit of a chunk in a store that nobody uses."""
    with Store(home / "store") as store, store.chunk_path(chunk).open("r+b") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 1]))


def test_a_node_helps_itself_to_the_files_that_it_may_open(seed: NodeProcess) -> None:
    assert seed.process is not None
    soft, _ = psutil.Process(seed.process.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert soft >= min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def test_too_few_files_may_be_opened(tmp_path: Path) -> None:
    with running(tmp_path / "home", "--bootstrap", "x", limits="ulimit -n 64") as node:
        screen = node.ended()
    screen.is_error("FD-LIMIT", 4)
    assert "64 open files are allowed" in screen.what
    assert "ulimit -n 4096" in screen.do
    assert "service" in screen.likely


def test_a_full_disk_while_chunks_come_costs_nothing_that_is_there(
    seed: NodeProcess, run: Run, tmp_path: Path
) -> None:
    home = home_of(JOINER, tmp_path)
    to_the_seed = ("--seed", "--bootstrap", seed.address())
    with running(home, *to_the_seed, limits="ulimit -f 64") as node:  # 32 KiB a file
        screen = node.ended()
    screen.is_error("DISK-LOW", 4)
    assert str(home / "store") in screen.evidence
    assert "free some space" in screen.do
    assert "nothing stored was lost" in screen.likely
    with Store(home / "store") as store:
        assert store.read_blob(run.manifest.data.index)
        assert not store.holds_blob(run.manifest.genesis)
    with running(home, *to_the_seed) as node:
        node.saw("caught-up")
        fetched = node.saw("snapshot-fetched")
        node.interrupt()
        assert node.ended().status == 0
    assert fetched["dropped"] == []
    with Store(home / "store") as store:
        assert store.read_blob(run.manifest.genesis)


def genesis_chunk(home: Path, run: Run) -> Digest:
    with Store(home / "store") as store:
        return store.manifest(run.manifest.genesis).chunks[0]


def test_what_rots_in_one_store_is_waited_for_and_comes_from_another(
    published: Path, organiser: Path, run: Run, tmp_path: Path
) -> None:
    genesis = run.manifest.genesis
    chunk = genesis_chunk(organiser, run)
    damage(organiser, chunk)
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
    assert "no source has 1 of the chunks" in delayed["reason"]
    assert delayed["evidence"] == [f"{run.manifest.organiser} lacks 1 of the chunks"]
    assert chunk in found["reason"]
    with Store(organiser / "store") as store:
        assert store.read_blob(genesis)

"""A home (the folder with a node's files) that p2ptrain wrote in November 2026 can still be used.

`home_of_november_2026.tar.xz` is the home of the only member of a run, stopped at outer step 5.
When the run was published, `inner.join_optimizer` was "fresh" by default, and a manifest could set
`sync.merge` to a value other than "mean".
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import trio

from p2ptrain.cli.main import main
from p2ptrain.run import load_run
from tests.node.swarm import Swarm, many_threads

HOME = Path(__file__).parents[1] / "fixtures" / "home_of_november_2026.tar.xz"
RUN = "645a682023bd2e1c9c796b966087d76f64c6fe7afd8eedb2c8c25808b32561be"
HEAD = "0cc2d1e4837f33aac6bd9a7c37c7abd57944eded7de991f35b6c7df8a8ac0cc1"
STATE = "26158fdc7a3b1a9c95f0b111d66ad22d9cf408ce5a89a9322341417b4fff1440"
STEP = 5


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with tarfile.open(HOME) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "seed"


def test_home_of_an_earlier_version_can_be_verified(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--json", "--home", str(home)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["head"], found["state"]) == (RUN, HEAD, STATE)
    assert (found["good"], found["step"]) == (True, STEP)


def test_run_of_an_earlier_version_keeps_its_id_and_defaults(home: Path) -> None:
    run = load_run(home / "run" / "manifest.signed")
    assert run is not None
    assert run.id == RUN
    assert run.manifest.inner.join_optimizer == "fresh"
    assert run.manifest.inner.donors_max == 0


@pytest.mark.needs_torch
async def test_node_continues_in_a_home_of_an_earlier_version(home: Path) -> None:
    with many_threads():
        async with trio.open_nursery() as nursery:
            swarm = Swarm(home.parent, nursery)
            node = swarm.add("seed")
            await swarm.start("seed")
            assert node.context.run == RUN
            await swarm.until(lambda: swarm.at_step(STEP + 3))
            assert node.context.ledger.core.chain[2 * STEP - 1].entry.digest == HEAD
            await swarm.stop("seed")

"""If two machines use the same key, the second node stops with a message. If one node is killed and
restarted at once, it is not mistaken for a second machine.
"""

from __future__ import annotations

from pathlib import Path

from p2ptrain.identity import load_or_create
from p2ptrain.names import label
from tests.faults.conftest import MEMBER
from tests.faults.processes import NodeProcess, home_of, running


def test_only_one_node_runs_with_a_key_and_it_can_restart(
    seed: NodeProcess, tmp_path: Path
) -> None:
    homes = [tmp_path / name for name in ("original", "copy")]
    for folder in homes:
        folder.mkdir()
    original, copy = (home_of(MEMBER, folder) for folder in homes)
    way_in = ("--seed", "--bootstrap", seed.address())
    with running(original, *way_in) as node:
        node.saw("state", state="serving")
        with running(copy, *way_in) as second:
            screen = second.ended(deadline_s=180)  # The second node retries for a while.
        screen.is_error("ID-IN-USE", 8)
        assert label(load_or_create(seed.home / "identity.key").peer) in screen.evidence
        assert "stop the other node" in screen.do
        assert "checking whether it has ended" in second.output()
        assert node.running
        node.kill()
    with running(original, *way_in) as again:
        again.said("serving")
        again.interrupt()
        assert again.ended().status == 0

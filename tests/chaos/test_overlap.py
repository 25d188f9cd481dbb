"""Nodes are killed in runs whose trainers do not wait for the average, and restart from their homes
(the folders with their files).

A node is killed during the reduce that averages its reported work, while its trainer already does
the next work. So it loses state that a node in a plain run does not have. After the restart, the
node must contribute exactly the work that it still has.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.observe.journal import read_journal
from p2ptrain.testing.network_namespaces import opened
from tests.chaos.harness import verdict
from tests.chaos.harness.crew import ChaosNode, Crew, crew
from tests.chaos.harness.modes import MODES
from tests.chaos.harness.points import Point, Role

NAMES = ("ann", "bob", "cat")
GATHER = Point.parse("before:gather")
SOON_S = 120.0


@pytest.mark.parametrize("mode", ["streaming", "eager"])
@pytest.mark.needs_torch
def test_node_killed_while_its_trainer_is_ahead_contributes_again(
    tmp_path: Path, mode: str
) -> None:
    with opened(len(NAMES), loopback=True) as place:
        with crew(tmp_path, place, mode=MODES[mode], names=NAMES) as three:
            victim = stopped_ahead(three)
            victim.kill()
            three.start(victim)
            step = three.step + 1  # The killed node's work may still be committed.
            three.wait_for("a joint commit", lambda: three.calm_since(step), deadline_s=SOON_S)
            three.wait_for(
                "equal snapshots",
                lambda: three.same_state_since(step) is not None,
                deadline_s=SOON_S,
            )
        assert verdict.at_the_end(three) == []


def stopped_ahead(three: Crew) -> ChaosNode:
    """Stop a node in a reduce, wait until its trainer has done further work, and return the
    node."""
    *others, victim = three.nodes
    victim.arm(GATHER, Role.OTHER)
    three.wait_for("a node in a reduce", lambda: victim.at == GATHER, deadline_s=SOON_S)
    three.wait_for("its trainer ahead of it", lambda: is_ahead(victim), deadline_s=SOON_S)
    assert all(node.running for node in others)
    return victim


def is_ahead(node: ChaosNode) -> bool:
    """Return whether the node's trainer has done more work than the node last reported."""
    kinds = [record["event"] for record in read_journal(Home(node.home).journal)]
    return kinds[::-1].index("inner-step") < kinds[::-1].index("ready")

"""Nodes that delete old entries can restart and serve others, and newcomers can start from a base
(a certified state, from which the kept entries continue).
"""

from __future__ import annotations

from random import Random

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ledger.history.check_base import check_base
from p2ptrain.simulation import PROFILES
from p2ptrain.simulation.disk import verify
from p2ptrain.simulation.pruner import Pruner, base_for_newcomer, forged
from p2ptrain.simulation.run import run_to_end, violations_in, world_of
from p2ptrain.simulation.world import SimWorld

SEEDS = 6


@pytest.fixture(scope="module")
def worlds() -> list[SimWorld]:
    """Return the worlds of the profile `pruning`, each run to its end."""
    made = [world_of(s, peers=5, steps=10, profile=PROFILES["pruning"]) for s in range(SEEDS)]
    for seed, world in enumerate(made):
        assert (run_to_end(world), violations_in(world)) == ("", []), f"seed {seed}"
    return made


def test_nodes_prune_and_restart_and_newcomers_still_join(worlds: list[SimWorld]) -> None:
    for world in worlds:
        keeper, *others = world.nodes.values()
        assert keeper.disk.chain[0].entry.height == 1
        pruned = [node for node in others if node.disk.base is not None]
        assert all(len(node.disk.chain) < len(keeper.disk.chain) for node in pruned)
        assert all(node.state == keeper.state for node in others if node.alive)
    assert sum(world.restarts for world in worlds) > SEEDS
    pruners = [node for world in worlds for node in world.nodes.values() if type(node) is Pruner]
    assert len(pruners) > 2 * SEEDS
    voters = {(world.rules.run, voter) for world in worlds for voter in world.latest.voters}
    founders = {(world.rules.run, each) for world in worlds for each in world.rules.founders}
    assert len(voters - founders) > SEEDS


def test_forged_base_is_detected_only_by_its_digest(worlds: list[SimWorld]) -> None:
    world = worlds[0]
    kept = next(iter(world.nodes.values())).ledger.kept
    for seed in range(4):
        true = base_for_newcomer(world.rules, kept, Random(seed))
        assert true is not None
        bad = forged(world.rules, true)
        check_base(world.rules, bad, bad.checkpoint, verify)
        with pytest.raises(RemoteProtocolError, match="this base has checkpoint"):
            check_base(world.rules, bad, true.checkpoint, verify)


def test_base_exists_only_after_the_first_certified_snapshot() -> None:
    world = world_of(0, peers=4, steps=10, profile=PROFILES["pruning"])
    kept = next(iter(world.nodes.values())).ledger.kept
    assert base_for_newcomer(world.rules, kept, Random(0)) is None

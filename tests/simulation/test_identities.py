"""Identities in hostile simulations: lies, replays and copies do no harm, and each rule against
them is needed.
"""

from __future__ import annotations

import pytest

from p2ptrain.simulation.identities.world import simulate_identities
from tests.simulation.defects.identity_defects import IDENTITY_MUTANTS
from tests.simulation.defects.planting import Mutant
from tests.simulation.test_liars import printed_for_any_hash_seed

SEEDS = range(20)
"""The seeds of the simulated worlds. All of them together take one second.
`docs/results/simulation.md` has the results for 10,000 seeds.
"""

MUTANT_SEEDS_MAX = 200
"""The number of seeds to try before a defect counts as not found. Most defects are found with the
first seed, and the hardest one with the 22nd.
"""


def test_lies_do_not_stop_peers_and_two_copies_never_both_vote() -> None:
    worlds = [simulate_identities(seed) for seed in SEEDS]
    assert [found for world in worlds for found in world.checkers.violations] == []
    assert sum(world.replayed for world in worlds) > 1000
    assert sum(world.restarts for world in worlds) > 50
    silenced = [each for world in worlds for each in world.processes if each.silent_s is not None]
    assert len(silenced) > 10, "too few copies ran at the same time as their originals"
    named = {(seed, peer) for seed, world in enumerate(worlds) for peer in world.named}
    assert named, "no liar was ever named, so the test proves nothing"
    assert named <= {(seed, world.liar) for seed, world in enumerate(worlds)}


@pytest.mark.parametrize("mutant", IDENTITY_MUTANTS, ids=lambda mutant: mutant.name)
def test_identity_defect_is_found(mutant: Mutant) -> None:
    with mutant.planted():
        for seed in range(MUTANT_SEEDS_MAX):
            violations = simulate_identities(seed).checkers.violations
            objecting = {text.split(":")[0] for text in violations}
            if objecting.intersection(mutant.caught_by):
                return
    pytest.fail(f"{mutant.name} was not found by {mutant.caught_by} in {MUTANT_SEEDS_MAX} seeds")


TELL = """
from p2ptrain.simulation.identities.world import simulate_identities
for seed in range(3):
    world = simulate_identities(seed)
    print([(each.me, each.watch.incarnation, each.ended_s) for each in world.processes])
"""


def test_seed_gives_the_same_world_for_any_hash_seed() -> None:
    told = printed_for_any_hash_seed(TELL)
    assert told.count("p0") >= 3

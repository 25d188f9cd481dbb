"""A simulator that finds nothing proves nothing: deliberate defects, and which checker finds
each.
"""

from __future__ import annotations

import pytest

from p2ptrain.testing.simulation import simulate
from p2ptrain.testing.simulation.mutants import MUTANTS, Mutant

SEEDS_MAX = 120


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_is_found(mutant: Mutant) -> None:
    with mutant.planted():
        for seed in range(SEEDS_MAX):
            report = simulate(seed, peers=4, steps=8, profile=mutant.profile)
            objecting = {text.split(":")[0] for text in report.violations}
            if objecting.intersection(mutant.caught_by):
                return
    pytest.fail(f"{mutant.name} was not found by {mutant.caught_by} in {SEEDS_MAX} seeds")


def test_a_defect_is_gone_when_it_is_not_planted_any_more() -> None:
    for mutant in MUTANTS:
        with mutant.planted():
            pass
    assert simulate(0, peers=4, steps=8, profile="torn").good

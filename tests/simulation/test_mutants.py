"""Each deliberate defect must be found by its checker. A simulator that misses defects proves
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2ptrain.simulation import simulate
from tests.simulation.defects.mutants import MUTANTS
from tests.simulation.defects.planting import STUCK, Mutant

SEEDS_MAX = 2000
"""The number of seeds to try before a defect counts as not found. Most defects are found within ten
seeds.
"""

RESULTS = (Path(__file__).parents[2] / "docs" / "results" / "simulation.md").read_text("utf-8")
LISTED = re.findall(r"^\| ([a-z0-9-]+) \| ([a-z]+) \| (\d+) \| \w", RESULTS, re.MULTILINE)
"""The rows of the page's table of defects: name, world, and the number of seeds that it took."""


def seeds_for(mutant: Mutant) -> Iterator[int]:
    """Yield the seeds to try: first the one that the page names, which saves minutes, then all."""
    yield from (int(number) - 1 for name, _, number in LISTED if name == mutant.name)
    yield from range(SEEDS_MAX)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_ledger_defect_is_found(mutant: Mutant) -> None:
    with mutant.planted():
        for seed in seeds_for(mutant):
            peers, steps = mutant.peers, mutant.steps
            report = simulate(seed, peers=peers, steps=steps, profile=mutant.profile)
            objecting = {text.split(":")[0] for text in report.violations}
            objecting |= {STUCK} if report.stuck else set()
            if objecting.intersection(mutant.caught_by):
                return
    pytest.fail(f"{mutant.name} was not found by {mutant.caught_by} in {SEEDS_MAX} seeds")


def test_defects_are_many_and_have_distinct_names() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15


def test_results_page_lists_all_defects() -> None:
    listed = sorted((name, profile) for name, profile, _ in LISTED)
    assert listed == sorted((mutant.name, mutant.profile) for mutant in MUTANTS)


def test_defects_have_no_effect_after_they_are_removed() -> None:
    for mutant in MUTANTS:
        with mutant.planted():
            pass
    assert simulate(0, peers=4, steps=8, profile="torn").good

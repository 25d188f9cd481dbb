"""`p2ptrain simulate` counts, fails loudly, and says how to see it again."""

from __future__ import annotations

import json

from p2ptrain.testing.simulation.mutants import MUTANTS
from tests.cli.conftest import Command


def test_good_runs_are_counted(p2ptrain: Command) -> None:
    outcome = p2ptrain("simulate", "--seeds", "3", "--steps", "4", "--profile", "lossy", "--json")
    assert outcome.code == 0
    facts = json.loads(outcome.out.splitlines()[-1])
    counted = {name: facts[name] for name in ("seeds", "outer_steps", "violations", "stuck")}
    assert counted == {"seeds": 3, "outer_steps": 12, "violations": 0, "stuck": 0}
    assert facts["outer_steps_per_s"] > 0


def test_several_cores_find_what_one_finds(p2ptrain: Command) -> None:
    options = ("simulate", "--seeds", "6", "--steps", "3", "--profile", "torn", "--json")
    one, two = (json.loads(p2ptrain(*options, "--jobs", jobs).out) for jobs in ("1", "2"))
    for facts in (one, two):
        del facts["elapsed_s"], facts["cpu_s"], facts["outer_steps_per_s"]
    assert one == two


def test_a_failing_seed_is_named_replayed_and_told(p2ptrain: Command) -> None:
    mutant = next(it for it in MUTANTS if it.name == "commit-without-bytes")
    with mutant.planted():
        outcome = p2ptrain(
            "simulate", "--seeds", "2", "--first-seed", "5", "--steps", "6", "--profile", "crashes"
        )
    assert outcome.code == 1
    assert "2 violations, 0 stuck" in outcome.out
    assert "seed 5 failed: CommitsAreHeld" in outcome.err
    assert (
        "replay: p2ptrain simulate --seeds 1 --first-seed 5 "
        "--peers 5 --steps 6 --profile crashes" in outcome.err
    )
    assert "=> CommitsAreHeld" in outcome.err


def test_a_profile_that_does_not_exist(p2ptrain: Command) -> None:
    outcome = p2ptrain("simulate", "--profile", "heaven")
    assert outcome.code == 2
    assert "chaos" in outcome.err

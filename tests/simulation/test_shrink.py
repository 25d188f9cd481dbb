"""A failing seed is reduced to a smaller case with a short, readable transcript."""

from __future__ import annotations

import pytest

from p2ptrain.simulation import PROFILES
from p2ptrain.simulation.shrink import FailingCase, shrink, transcript
from tests.simulation.defects.mutants import MUTANTS

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize("name", ["vote-not-persisted", "commit-without-bytes", "lease-lost"])
def test_shrunk_failure_is_smaller_and_of_the_same_kind(name: str) -> None:
    mutant = BY_NAME[name]
    case = FailingCase(0, peers=5, steps=8, profile=PROFILES[mutant.profile])
    with mutant.planted():
        small = shrink(case)
        assert small.objections().intersection(mutant.caught_by)
        lines = transcript(small)
    assert (small.peers, small.steps) < (case.peers, case.steps)
    assert set(small.faults()) < set(case.faults())
    assert 3 <= len(lines) < 60
    assert lines[-1].startswith(tuple(f"=> {checker}" for checker in mutant.caught_by))


def test_transcript_shows_a_vote_that_was_not_written_to_disk() -> None:
    mutant = BY_NAME["vote-not-persisted"]
    with mutant.planted():
        small = shrink(FailingCase(0, peers=5, steps=8, profile=PROFILES[mutant.profile]))
        head, *lines, objection = transcript(small)
    assert head == f"seed {small.seed}, 3 peers, 1 steps; faults: none"
    assert {line.split("  ")[-1].partition(" ")[0] for line in lines} == {"propose"}
    assert objection.endswith("sent a message for height 1, round 0, before storing it")


def test_passing_seed_is_not_shrunk() -> None:
    case = FailingCase(3, peers=4, steps=4, profile=PROFILES["lossy"])
    assert shrink(case) == case


def test_transcript_names_the_faults_and_messages() -> None:
    mutant = BY_NAME["promise-not-persisted"]
    with mutant.planted():
        text = "\n".join(transcript(FailingCase(0, 5, 8, PROFILES["torn"])))
    assert "seed 0, 5 peers, 8 steps; faults: loss, crash_every_s, down_s" in text
    assert "→" in text

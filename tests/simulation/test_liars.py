"""Liars cannot break the ledger's main rules, or are detected when they do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from p2ptrain.simulation import PROFILES, simulate
from p2ptrain.simulation.liars.liar import Lie
from p2ptrain.simulation.run import world_of

SEEDS = range(60)


def test_liar_that_forks_a_majority_run_is_proved_guilty() -> None:
    reports = [simulate(seed, peers=5, steps=10, profile="liars") for seed in range(150)]
    assert [it for it in reports if not it.good] == []
    forks = [fork for it in reports for fork in it.forks]
    assert len(forks) > 2, "too few forks, so the test proves nothing"
    assert all(fork.endswith("proved guilty: p4") for fork in forks)
    assert {it.exposed for it in reports} == {(), ("p4",)}


def test_liars_below_a_third_of_the_voters_cannot_fork_a_two_thirds_quorum() -> None:
    reports = [simulate(seed, peers=7, steps=6, profile="strangers") for seed in SEEDS]
    assert [it for it in reports if not it.good] == []
    assert [it.forks for it in reports] == [()] * len(reports)
    assert {it.commits + it.skips for it in reports} == {6}
    assert sum(it.skips for it in reports) < 6, "the liars caused too many skipped steps"
    assert {peer for it in reports for peer in it.exposed} == {"p5", "p6"}


def test_honest_peers_can_decide_without_the_liars() -> None:
    """If the honest peers needed a liar's vote, one silent liar could stop the run, and the tests
    of liars would prove nothing.
    """
    found = [
        sorted(world_of(0, peers=peers, steps=1, profile=PROFILES["strangers"]).liars)
        for peers in (3, 5, 7)
    ]
    assert found == [[], ["p4"], ["p5", "p6"]]


def test_run_without_liars_exposes_no_peer() -> None:
    reports = [simulate(seed, peers=4, steps=8, profile="torn") for seed in range(10)]
    assert {it.exposed for it in reports} == {()}


def test_every_kind_of_lie_occurs() -> None:
    worlds = [
        world_of(seed, peers=5, steps=1, profile=PROFILES["liars"]) for seed in range(len(SEEDS))
    ]
    told = {lie for world in worlds for lie in world.nodes[world.rules.founders[-1]].lies}  # type: ignore[attr-defined]
    assert told == set(Lie)


@pytest.mark.parametrize("lie", list(Lie))
def test_run_continues_with_a_single_kind_of_lie(lie: Lie, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.Random.sample", lambda self, lies, k: [lie])
    reports = [simulate(seed, peers=7, steps=4, profile="strangers") for seed in range(4)]
    assert [it for it in reports if not it.good or it.commits != 4] == []


TELL = """
from p2ptrain.simulation import simulate
for profile in ("liars", "strangers"):
    for seed in range(6):
        print(simulate(seed, peers=7, steps=3, profile=profile))
"""


def printed_for_any_hash_seed(program: str) -> str:
    """Return the output of `program`, and check that it does not depend on the hash seed."""
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    return printed[0]


def test_simulation_with_liars_does_not_depend_on_the_hash_seed() -> None:
    """Peer ids are strings, and the order of a set of strings differs between processes."""
    told = printed_for_any_hash_seed(TELL)
    assert told.count("SimReport") == 12

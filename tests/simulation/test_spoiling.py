"""One participant spoils the reduces of a small run. This costs few attempts, and honest peers are
not left out more often than that participant.

For a longer test, run `p2ptrain simulate --profile spoiled` with 10,000 seeds.
"""

from __future__ import annotations

import pytest

from p2ptrain.simulation import PROFILES, simulate
from p2ptrain.simulation.liars.spoiling import (
    ExclusionsAreShared,
    Spoil,
    SpoilersCostLittle,
    SpoilersCostLittleTime,
)
from p2ptrain.simulation.run import run_to_end, violations_in, world_of

STEPS = 20


def lost_in(seed: int, peers: int, spoil: Spoil) -> tuple[int, int]:
    """Return the number of attempts lost in 20 outer steps, and how many times the most affected
    honest peer was left out.
    """
    world = world_of(seed, peers=peers, steps=STEPS, profile=PROFILES["spoiled"])
    (spoiler,) = world.rings.spoilers.values()
    spoiler.spoil = spoil
    assert run_to_end(world) == ""
    assert violations_in(world) == []
    cost = next(it for it in world.checkers if isinstance(it, SpoilersCostLittle))
    shares = next(it for it in world.checkers if isinstance(it, ExclusionsAreShared))
    honest = [count for peer, count in shares.left_out.items() if peer != spoiler.me]
    return cost.lost, max(honest, default=0)


@pytest.mark.parametrize("peers", [2, 3])
@pytest.mark.parametrize(
    "spoil",
    [it for it in Spoil if it not in (Spoil.TWO_MEANS, Spoil.LEAVE_OUT, Spoil.LONG_SILENCE)],
)
def test_spoiler_costs_a_few_attempts_in_20_outer_steps(spoil: Spoil, peers: int) -> None:
    """When the ledger had no memory of failures, each outer step lost at least one attempt."""
    lost, left_out = lost_in(1, peers, spoil)
    assert lost <= 7
    assert left_out <= (STEPS // 2 if spoil is Spoil.ACCUSE_ONE else 6)


@pytest.mark.parametrize(("spoil", "lost_max_s"), [(Spoil.LONG_SILENCE, 39.0), (Spoil.MUTE, 0.0)])
def test_expensive_spoiler_costs_little_time(spoil: Spoil, lost_max_s: float) -> None:
    """An earlier version forgot expensive failures as fast as cheap ones. In it, long silences cost
    86 s of a run of 270 s, and a silent proposer cost 15 s of a run of 93 s.
    """
    world = world_of(1, peers=3, steps=90, profile=PROFILES["spoiled"])
    (spoiler,) = world.rings.spoilers.values()
    spoiler.spoil = spoil
    assert run_to_end(world) == ""
    assert violations_in(world) == []
    cost = next(it for it in world.checkers if isinstance(it, SpoilersCostLittleTime))
    assert cost.lost_s <= lost_max_s
    assert cost.at_s < 210.0


def test_small_runs_with_one_spoiler_have_no_violations() -> None:
    reports = [simulate(it, peers=2 + it % 5, steps=12, profile="spoiled") for it in range(12)]
    assert [it for it in reports if not it.good] == []

"""A suspended process or a jumping clock costs a member its membership at most once."""

from __future__ import annotations

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.simulation import PROFILES, simulate
from p2ptrain.simulation.checkers.fairness import LeavesHaveCauses
from p2ptrain.simulation.clock import Clock, NodeClock
from p2ptrain.simulation.run import run_to_end, world_of
from p2ptrain.simulation.world import SimWorld

STOPPED_S = 20.0


def let_pass(world: SimWorld, seconds: float) -> None:
    until = world.now + seconds
    while world.now < until and world.latest.phase is not Phase.ENDED:
        assert world.clock.step()


def leaves_of(world: SimWorld, peer: PeerId) -> int:
    watch = next(it for it in world.checkers if isinstance(it, LeavesHaveCauses))
    return watch.dropped[peer]


def test_suspended_process_is_dropped_once_and_readmitted_once() -> None:
    for seed in range(10):
        world = world_of(seed, peers=5, steps=20, profile=PROFILES["calm"])
        let_pass(world, 3.0 + seed / 10)
        victim = world.nodes[PeerId(f"p{seed % 5}")]
        world.pause_node(victim)
        let_pass(world, STOPPED_S)
        assert not world.latest.is_member(victim.me)
        world.resume_node(victim)
        assert run_to_end(world) == ""
        assert leaves_of(world, victim.me) == 1
        assert world.latest.is_member(victim.me)
        assert [text for checker in world.checkers for text in checker.violations] == []
        others = world.rules.founders
        assert sum(leaves_of(world, peer) for peer in others) == 1


def test_short_suspension_does_not_cost_a_member_its_place() -> None:
    """The suspension is shorter than the silence that the failure detector allows."""
    world = world_of(1, peers=5, steps=12, profile=PROFILES["calm"])
    let_pass(world, 3.0)
    for peer in world.rules.founders:
        world.pause_node(world.nodes[peer])
        let_pass(world, 3.0)
        world.resume_node(world.nodes[peer])
        let_pass(world, 2.0)
    assert run_to_end(world) == ""
    assert sum(leaves_of(world, peer) for peer in world.rules.founders) == 0


def test_node_with_a_jumping_clock_does_not_suspect_other_peers() -> None:
    for leap_s in (1.0, 5.0, 60.0, 100_000.0):
        world = world_of(2, peers=4, steps=6, profile=PROFILES["calm"])
        let_pass(world, 2.5)
        world.leap(world.nodes[PeerId("p2")], leap_s)
        assert run_to_end(world) == ""
        assert sum(leaves_of(world, peer) for peer in world.rules.founders) == 0
        assert [text for checker in world.checkers for text in checker.violations] == []


def test_timer_of_a_drifting_clock_never_fires_early() -> None:
    world = Clock()
    fast = NodeClock(world, 1.25)
    fast.leap(3.0)
    assert fast.now == 3.0
    world.after(fast.time_until(8.0), lambda: None)
    world.step()
    assert 8.0 <= fast.now < 8.0 + 1e-6
    assert fast.time_until(2.0) == 0.0


@pytest.mark.parametrize(
    ("rate", "ahead_s", "now_s", "due_s"),
    [
        (0.9817134936543366, 37.372057640659605, 14.395465293426312, 51.504280166648904),
        (1.0, 1e6 + 1 / 3, 1.1, 1e6 + 2.0),
        (1.0, 0.0, 0.1, 0.7),
    ],
)
def test_timer_fires_only_when_its_clock_has_reached_the_time(
    rate: float, ahead_s: float, now_s: float, due_s: float
) -> None:
    world = Clock()
    world.at(now_s, lambda: None)
    world.step()
    clock = NodeClock(world, rate)
    clock.leap(ahead_s)
    for _ in range(3):
        world.after(clock.time_until(due_s), lambda: None)
        world.step()
    assert due_s <= clock.now < due_s + 1e-6


def test_world_in_which_time_does_not_advance_is_stuck() -> None:
    world = world_of(1, peers=3, steps=2, profile=PROFILES["calm"])

    def again() -> None:
        world.clock.after(0.0, again)

    world.clock.after(1.5, again)
    assert run_to_end(world) == "time does not advance beyond 1.5 s"


@pytest.mark.parametrize("trained_by", [0.0, 75.0])
def test_world_is_stuck_only_some_time_after_the_last_training(
    trained_by: float,
) -> None:
    """Seed 88649 found this case: two voters were both needed, and the slower voter had to train
    four leases.
    """
    profile = PROFILES["calm"]
    world = world_of(1, peers=3, steps=2, profile=profile)
    vars(world)["train"] = lambda node, blocks: None  # Training never ends from now on.
    world.trained_by = trained_by
    assert run_to_end(world) == "step 1, height 2: 3 of 3 voters are up, but nothing happens"
    assert 0 < world.clock.now - max(profile.faults_s, trained_by) - profile.settle_s < 5


def test_run_that_pauses_after_skipped_steps_is_not_stuck() -> None:
    """Sybils can make every reduce fail. After several skipped outer steps the pause takes
    minutes."""
    report = simulate(2, peers=5, steps=20, profile="sybils")
    assert (report.good, report.pausing, report.outer_steps) == (True, True, 15)
    assert not simulate(1, peers=3, steps=4, profile="calm").pausing


def test_run_is_not_stuck_in_the_attempts_that_follow_a_pause() -> None:
    """Silent Sybils let each attempt take half a minute. The last step of this run took 176 s: a
    pause of 96 s and three attempts."""
    report = simulate(2835, peers=5, steps=8, profile="allies")
    assert (report.good, report.skips, report.virtual_s > 728) == (True, 8, True)


def test_faults_of_the_crowd_profile_occur() -> None:
    reports = [simulate(seed, peers=5, steps=8, profile="crowd") for seed in range(6)]
    assert sum(it.members_seen for it in reports) > 50
    assert [it for it in reports if not it.good] == []

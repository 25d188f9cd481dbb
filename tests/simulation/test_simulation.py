"""The real ledger in hostile simulated worlds: it never contradicts itself and never gets stuck."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.ledger.messages.peer_reports import ReduceFailed
from p2ptrain.simulation import PROFILES, SimReport, simulate
from p2ptrain.simulation.node import WHOLE_EVERY
from p2ptrain.simulation.run import world_of

STEPS = 8
HONEST = [name for name, profile in PROFILES.items() if not profile.liars]


def bad(reports: list[SimReport]) -> list[str]:
    """Return, for each failure, the call that replays it and the checkers' messages."""
    return [
        f"simulate({it.seed}, peers={peers}, steps={STEPS}, profile={it.profile!r}): "
        f"{it.violations or it.stuck}"
        for it, peers in zip(reports, map(_peers, [it.seed for it in reports]), strict=True)
        if not it.good
    ]


def _peers(seed: int) -> int:
    """Return the size of the group: three, four (where exact halves matter) and five peers in
    turn.
    """
    return 3 + seed % 3


@pytest.mark.parametrize(
    ("profile", "first_seed"),
    # Worlds with Sybils take ten times as long. Campaigns simulate more of them.
    [(each, first) for each in HONEST for first in range(0, 6 if PROFILES[each].sybils else 18, 6)],
)
def test_every_honest_profile_runs_to_its_end_without_violations(
    profile: str, first_seed: int
) -> None:
    seeds = range(first_seed, first_seed + 6)
    reports = [simulate(s, peers=_peers(s), steps=STEPS, profile=profile) for s in seeds]
    assert bad(reports) == []
    assert {it.outer_steps for it in reports} == {STEPS}
    decided = [it.commits + it.skips for it in reports]
    if PROFILES[profile].quorum_loss == "wait":
        assert set(decided) == {STEPS}
    else:
        assert min(decided) >= STEPS, (
            "the count includes commits of abandoned branches, so it cannot be lower"
        )


@pytest.mark.parametrize("seed", range(6))
def test_seven_peers_with_a_two_thirds_quorum_run_without_violations(seed: int) -> None:
    report = simulate(seed, peers=7, steps=5, profile="lossy", quorum="two-thirds")
    assert report.good, report


@pytest.mark.parametrize("peers", [1, 2])
def test_runs_with_one_or_two_peers_complete(peers: int) -> None:
    assert simulate(1, peers=peers, steps=STEPS, profile="lossy").good


@pytest.mark.parametrize("profile", ["calm", "chaos"])
def test_same_seed_gives_the_same_run(profile: str) -> None:
    first = simulate(11, peers=5, steps=6, profile=profile)
    assert simulate(11, peers=5, steps=6, profile=profile) == first
    assert simulate(12, peers=5, steps=6, profile=profile) != first


def test_without_faults_every_step_is_a_roster_and_a_commit() -> None:
    report = simulate(3, peers=5, steps=20, profile="calm")
    assert (report.commits, report.skips, report.height) == (20, 0, 40)


def test_faults_of_hostile_profiles_occur() -> None:
    """If the faults of the profiles did not occur, the other tests would prove nothing."""
    crashes = [simulate(s, peers=4, steps=STEPS, profile="torn") for s in range(30)]
    churn = [simulate(s, peers=4, steps=STEPS, profile="churn") for s in range(10)]
    assert sum(it.restarts for it in crashes) > 150
    assert sum(it.skips for it in crashes) > 0
    assert sum(it.height - 2 * it.outer_steps for it in crashes) > 60
    assert sum(it.members_seen for it in churn) > 60


def test_messages_of_a_step_grow_at_most_with_the_square_of_members() -> None:
    """In a step, each peer sends O(members) messages: heartbeats to all members, and, as a
    proposer, the messages of a round.
    """
    few, many = (simulate(1, peers=n, steps=6, profile="calm") for n in (5, 20))
    each_few, each_many = few.messages / 5, many.messages / 20
    assert each_many < 6 * each_few


@pytest.mark.parametrize("proposes_next", [True, False])
@pytest.mark.parametrize("seed", range(15))
def test_killed_participant_delays_the_commit_only_a_little(seed: int, proposes_next: bool) -> None:
    """The kill costs one more reduce (at most 0.6 s here) and the decisions on two more entries. No
    peer has to wait for the failure detector.
    """
    world = world_of(seed, peers=5, steps=3, profile=PROFILES["calm"])
    while world.latest.phase is not Phase.REDUCE or not world.rings.is_under_way():
        assert world.clock.step()
    voters, height = world.latest.voters, world.latest.height + 1
    proposer = voters[height % len(voters)]
    victim = proposer if proposes_next else voters[(height + 2) % len(voters)]
    killed_at = world.now
    world.stop_node(world.nodes[victim])
    while not world.commits:
        assert world.clock.step()
    assert world.now - killed_at < 2.0
    assert victim not in world.latest.tokens_by_peer
    assert [text for checker in world.checkers for text in checker.violations] == []


@pytest.mark.parametrize("seed", [35531, 36911])
def test_entry_is_decided_although_most_of_its_voters_left(seed: int) -> None:
    """In an earlier version, the worlds of these two seeds got stuck. Most voters left while they
    were agreeing on the entry, and did not return.
    """
    assert simulate(seed, peers=5, steps=20, profile="chaos").good


def test_process_notices_members_that_left_before_it_restarted() -> None:
    """In an earlier version, this world got stuck. All remaining peers had restarted, so none of
    them missed the members that had left earlier.
    """
    assert simulate(43983, peers=5, steps=20, profile="chaos").good


def test_late_failure_report_does_not_replace_a_newer_report() -> None:
    """In an earlier version, the world of seed 81526 got stuck. The last report of both
    participants was about an earlier failed attempt, so no peer knew that the newer one had failed.
    """
    world = world_of(1, peers=3, steps=STEPS, profile=PROFILES["calm"])
    world.clock.step()
    node = next(iter(world.nodes.values()))
    voters = tuple(world.nodes)
    for attempt in (0, 1, 0):
        node.reduced(Roster(0, attempt, voters, ()), None, ())
    said = [event for _ in range(WHOLE_EVERY) for event in node.heartbeat().events]
    assert [each for each in said if isinstance(each, ReduceFailed)] == [
        ReduceFailed(node.me, 0, 1, ())
    ]


def test_failing_reduces_do_not_use_up_the_outer_steps_of_a_run() -> None:
    """If every reduce fails, only a few outer steps are skipped in an hour."""
    profile = replace(PROFILES["calm"], reduce_fails=1.0, faults_s=1e9)
    world = world_of(0, peers=3, steps=100, profile=profile)
    while world.clock.now < 3600:
        assert world.clock.step()
    assert 4 < world.latest.step < 20
    assert world.latest.phase is not Phase.ENDED

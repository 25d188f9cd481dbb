"""One simulated run: its arguments, its end, and its report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from p2ptrain.ids import PeerId, RunId
from p2ptrain.ledger.chain.quorum import reached
from p2ptrain.ledger.chain.rules import QuorumPolicy, Rules
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.policy.rest import rests_until
from p2ptrain.simulation.disk import digest
from p2ptrain.simulation.profiles import PROFILES, Profile
from p2ptrain.simulation.world import SimWorld

VIOLATIONS_MAX = 20
"""Maximum number of violations in a report: a broken world has new ones at every step."""


@dataclass(frozen=True, slots=True)
class SimReport:
    """The result of a run. `stuck` says in words where the run stopped, and is empty if the run
    completed. `pausing`: the run was ended early, in a long pause after skipped outer steps.
    `longest_calm_s` is the longest time without a commit after the faults ended. `forks` lists the
    forks; a run ends with the first one. `exposed` are the peers that are known to have signed
    contradictory messages."""

    seed: int
    profile: str
    outer_steps: int
    commits: int
    skips: int
    height: int
    violations: tuple[str, ...]
    stuck: str
    virtual_s: float
    messages: int
    restarts: int
    members_seen: int
    longest_calm_s: float
    pausing: bool = False
    forks: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not self.violations and not self.stuck


def simulate(
    seed: int,
    *,
    peers: int = 4,
    steps: int = 10,
    profile: str | Profile = "calm",
    quorum: QuorumPolicy | None = None,
) -> SimReport:
    """Run `steps` outer steps of `peers` founders. The same arguments give the same report."""
    chosen = PROFILES[profile] if isinstance(profile, str) else profile
    world = world_of(seed, peers=peers, steps=steps, profile=chosen, quorum=quorum)
    stuck = run_to_end(world)
    return _report(seed, world, stuck)


def world_of(
    seed: int, *, peers: int, steps: int, profile: Profile, quorum: QuorumPolicy | None = None
) -> SimWorld:
    """Return a new world in which nothing has happened yet."""
    rules = Rules(
        run=RunId(digest(f"run {seed}")),
        founders=tuple(PeerId(f"p{index}") for index in range(peers)),
        outer_steps=steps,
        blocks=64,
        blocks_per_lease=4,
        tokens_per_block=1000,
        participants_min=2 if peers > 2 else 1,
        attempts_max=3,
        grace_s=3.0,
        round_timeout_s=0.6,
        patience_s=0.3,
        quorum=quorum or profile.quorum,
        quorum_loss=profile.quorum_loss,
        branch_after_s=8.0,
        claims=profile.claims,
        audits=profile.audits,
    )
    if profile.open:
        # All founders but one can be seeds, and all other trainers can be liars. So a single honest
        # participant must be enough.
        rules = replace(rules, founders_vote=True, participants_min=1, reduce_s=20.0, absent_s=4.0)
    return SimWorld(Random(f"{profile.name}/{seed}"), rules, profile)


def run_to_end(world: SimWorld, *, until_violation: bool = False) -> str:
    """Run until the run has ended on all nodes, or optionally until the first violation. Return why
    the run got stuck, or ""."""
    clock, forks, profile = world.clock, world.exposure.forks, world.profile
    stuck_after = 0.0  # Its inputs only grow, so it is recomputed only when that time is reached.
    while not _is_over(world) and not forks:
        if until_violation and any(checker.violations for checker in world.checkers):
            break
        if not clock.step():
            return "no further actions are planned"
        if clock.stands_still:
            return f"time does not advance beyond {clock.now} s"
        if clock.now > stuck_after:
            calm_since = max(world.progressed_at, world.trained_by)
            rested_at = _pause_ends_at(world)
            if clock.now > calm_since + profile.settle_s and clock.now < rested_at:
                return ""  # A pause is deliberate. Simulating an hour of it would test nothing.
            stuck_after = max(calm_since, min(rested_at, clock.now)) + profile.settle_s
            if clock.now > stuck_after:
                return _why_stuck(world)
    return ""


def _pause_ends_at(world: SimWorld) -> float:
    """Return the time at which the pause after skipped outer steps is over for a quorum. Liars
    that make every reduce fail can make the pause last an hour. A single voter that counted fewer
    skipped steps may propose earlier. But the others need not agree, since a liar can hide its
    Ready report from them."""
    voters, rules = world.latest.voters, world.rules
    nodes = {voter: world.nodes[voter] for voter in voters if voter not in world.liars}
    ends = {
        voter: rests_until(rules, node.ledger.reports)
        for voter, node in nodes.items()
        if node.is_running
    }
    for at in sorted(ends.values()):
        rested = [voter for voter in voters if ends.get(voter, at) <= at]
        if reached(rules.quorum, voters, rested):
            return at
    return 0.0


def _is_over(world: SimWorld) -> bool:
    if world.latest.phase is not Phase.ENDED:
        return False
    if world.rules.branches and not _is_settled(world):
        return False
    honest = [node for node in world.nodes.values() if node.me not in world.liars]
    return all(node.state.phase is Phase.ENDED for node in honest if node.is_running)


def _is_settled(world: SimWorld) -> bool:
    """Return whether all nodes are back and follow the branch of the highest rank (SPEC.md, B7)."""
    nodes = world.nodes.values()
    return all(node.is_running and node.state.line == world.latest.line for node in nodes)


def _why_stuck(world: SimWorld) -> str:
    voters = world.latest.voters
    up = [voter for voter in voters if world.nodes[voter].alive]
    where = f"step {world.latest.step}, height {world.latest.height}"
    return f"{where}: {len(up)} of {len(voters)} voters are up, but nothing happens"


def violations_in(world: SimWorld) -> list[str]:
    return [text for checker in world.checkers for text in checker.violations]


def _report(seed: int, world: SimWorld, stuck: str) -> SimReport:
    return SimReport(
        seed=seed,
        profile=world.profile.name,
        outer_steps=world.latest.step,
        commits=world.commits,
        skips=world.skips,
        height=world.latest.height,
        violations=tuple(violations_in(world)[:VIOLATIONS_MAX]),
        stuck=stuck,
        virtual_s=round(world.clock.now, 3),
        messages=world.network.messages,
        restarts=world.restarts,
        members_seen=len(world.nodes),
        longest_calm_s=round(world.longest_calm_s, 3),
        pausing=not stuck and not world.exposure.forks and not _is_over(world),
        forks=tuple(world.exposure.forks),
        exposed=tuple(sorted({peer for peer, _, _ in world.exposure.proofs})),
    )

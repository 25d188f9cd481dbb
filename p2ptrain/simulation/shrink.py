"""Shrink a failing seed to fewer steps, peers and kinds of faults, and print a short transcript.

Changing the number of peers or steps, or any fault setting, gives a completely different run, since
all randomness comes from one seed. So each smaller world is tried with a few seeds, and is kept if
the same checker finds a violation in one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from p2ptrain.simulation.profiles import Profile
from p2ptrain.simulation.run import run_to_end, violations_in, world_of
from p2ptrain.simulation.trace import Trace
from p2ptrain.simulation.world import SimWorld

SEEDS_TRIED = 12
RUNS_MAX = 800
"""Maximum number of runs in one search for a smaller case. A search takes about half a minute."""

PEERS_MIN = 3


@dataclass(frozen=True, slots=True)
class FailingCase:
    """One run. It fails if a checker finds a violation, or if it gets stuck."""

    seed: int
    peers: int
    steps: int
    profile: Profile

    def world(self) -> SimWorld:
        return world_of(self.seed, peers=self.peers, steps=self.steps, profile=self.profile)

    def objections(self) -> frozenset[str]:
        """Return the names of checkers that find violations, and "stuck" if the run got stuck."""
        world = self.world()
        stuck = run_to_end(world)
        named = {text.partition(":")[0] for text in violations_in(world)}
        return frozenset(named | {"stuck"} if stuck else named)

    def faults(self) -> list[str]:
        """Return the fields of the profile that differ from those of a calm world."""
        calm = Profile("calm")
        return [
            field.name
            for field in fields(Profile)
            if field.name not in ("name", "quorum", "faults_s", "settle_s")
            and getattr(self.profile, field.name) != getattr(calm, field.name)
        ]


def shrink(case: FailingCase) -> FailingCase:
    """Return the smallest case found that fails as `case` does, or `case` if it does not fail."""
    wanted = case.objections()
    runs = 0
    smaller: FailingCase | None = case if wanted else None
    while smaller is not None and runs < RUNS_MAX:
        case, smaller = smaller, None
        for candidate in _smaller(case):
            runs += 1
            if candidate.objections() & wanted:
                smaller = candidate
                break
    return case


def _smaller(case: FailingCase) -> Iterator[FailingCase]:
    calm = Profile("calm")
    worlds = [
        replace(case, steps=steps) for steps in (1, 2, case.steps // 2) if 0 < steps < case.steps
    ]
    if case.peers > PEERS_MIN:
        worlds += [replace(case, peers=PEERS_MIN), replace(case, peers=case.peers - 1)]
    for name in case.faults():
        calmer = {"name": f"{case.profile.name.split('-')[0]}-shrunk", name: getattr(calm, name)}
        worlds.append(replace(case, profile=replace(case.profile, **calmer)))
    for world in worlds:
        for seed in range(case.seed, case.seed + SEEDS_TRIED):
            yield replace(world, seed=seed)


def transcript(case: FailingCase) -> list[str]:
    """Return the messages about the last height, up to the first violation."""
    world = case.world()
    world.trace = Trace()
    run_to_end(world, until_violation=True)
    objection = violations_in(world) or ["the run got stuck"]
    faults = ", ".join(case.faults()) or "none"
    head = f"seed {case.seed}, {case.peers} peers, {case.steps} steps; faults: {faults}"
    return [head, *world.trace.since_height(world.latest.height), f"=> {objection[0]}"]

"""Many seeds of one world, on one core or several, and what came of all of them together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from p2ptrain.testing.simulation.run import SimReport, simulate

FAILURES_KEPT = 20

PROGRESS_S = 5.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """`steps` outer steps for each of the `seeds`, from `first_seed` on."""

    seeds: int
    first_seed: int = 0
    peers: int = 5
    steps: int = 20
    profile: str = "chaos"

    def replay(self, seed: int) -> str:
        """The command that runs this one seed again."""
        options = f"--peers {self.peers} --steps {self.steps} --profile {self.profile}"
        return f"p2ptrain simulate --seeds 1 --first-seed {seed} {options}"


@dataclass(frozen=True, slots=True)
class Campaign:
    """`violations` and `stuck` count seeds; `failures` are the first of them.

    `forks` are runs that liars forked and in which it was proved who did it.
    """

    seeds: int
    outer_steps: int
    commits: int
    skips: int
    restarts: int
    violations: int
    stuck: int
    forks: int
    virtual_s: float
    elapsed_s: float
    cpu_s: float
    failures: tuple[SimReport, ...]

    @property
    def good(self) -> bool:
        return not self.violations and not self.stuck

    @property
    def outer_steps_per_s(self) -> float:
        """For each second of one core, whatever else this machine does."""
        return round(self.outer_steps / max(self.cpu_s, 1e-9), 1)


def run_campaign(plan: Plan, *, processes: int = 1, say: Say = lambda text: None) -> Campaign:
    """Run all seeds. `say` hears of progress, and of each failing seed and how to replay it."""
    assert processes >= 1
    numbers = range(plan.first_seed, plan.first_seed + plan.seeds)
    one = partial(simulate, peers=plan.peers, steps=plan.steps, profile=plan.profile)
    started, cpu_before = time.monotonic(), _cpu_s()
    if processes == 1:
        reports = _followed(plan, map(one, numbers), say)
    else:
        with ProcessPoolExecutor(processes) as pool:
            reports = _followed(plan, pool.map(one, numbers, chunksize=4), say)
    return _summed(reports, time.monotonic() - started, _cpu_s() - cpu_before)


def _cpu_s() -> float:
    """What this process and the children that it has waited for have used."""
    return sum(os.times()[:4])


def _followed(plan: Plan, reports: Iterable[SimReport], say: Say) -> list[SimReport]:
    kept: list[SimReport] = []
    spoken = time.monotonic()
    for report in reports:
        kept.append(report)
        if not report.good:
            why = "; ".join(report.violations[:3]) or report.stuck
            say(f"seed {report.seed} failed: {why}\n  replay: {plan.replay(report.seed)}")
        if time.monotonic() - spoken > PROGRESS_S:
            spoken = time.monotonic()
            failed = sum(not it.good for it in kept)
            say(f"{len(kept)} of {plan.seeds} seeds, {failed} failed")
    return kept


def _summed(reports: list[SimReport], elapsed_s: float, cpu_s: float) -> Campaign:
    failures = [report for report in reports if not report.good]
    return Campaign(
        seeds=len(reports),
        outer_steps=sum(it.outer_steps for it in reports),
        commits=sum(it.commits for it in reports),
        skips=sum(it.skips for it in reports),
        restarts=sum(it.restarts for it in reports),
        violations=sum(bool(it.violations) for it in reports),
        stuck=sum(bool(it.stuck) for it in reports),
        forks=sum(len(it.forks) for it in reports),
        virtual_s=round(sum(it.virtual_s for it in reports), 1),
        elapsed_s=round(elapsed_s, 2),
        cpu_s=round(cpu_s, 2),
        failures=tuple(failures[:FAILURES_KEPT]),
    )

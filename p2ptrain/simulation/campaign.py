"""Run many seeds of one simulated world on one or more cores, and sum up the results.

Seeds are run in batches, each in one process. The result of a batch does not depend on the process
that ran it, and batches are summed in order. So a campaign can be interrupted between two batches
and continued later: see `results`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing import Pool

from p2ptrain.simulation.run import simulate

FAILURES_KEPT = 20

BATCH_SEEDS = 20
"""Seeds per batch. A batch takes a few seconds, and an interruption loses at most one batch."""

PROGRESS_S = 5.0

PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """A plan to run `steps` outer steps for each of `seeds` seeds, starting with `first_seed`."""

    seeds: int
    first_seed: int = 0
    peers: int = 5
    steps: int = 20
    profile: str = "chaos"

    def replay(self, seed: int) -> str:
        """Return the command that runs this one seed again."""
        options = f"--peers {self.peers} --steps {self.steps} --profile {self.profile}"
        return f"p2ptrain simulate --seeds 1 --first-seed {seed} {options}"

    def batches(self) -> list[range]:
        """Return the seeds of each batch."""
        end = self.first_seed + self.seeds
        starts = range(self.first_seed, end, BATCH_SEEDS)
        return [range(start, min(start + BATCH_SEEDS, end)) for start in starts]


@dataclass(frozen=True, slots=True)
class SeedFailure:
    seed: int
    why: str


@dataclass(frozen=True, slots=True)
class CampaignSums:
    """The summed results of some seeds. `violations`, `stuck` and `pausing` count seeds; a seed is
    pausing if its run was ended early, in a long pause after skipped outer steps. `failures` lists
    the first failing seeds. `forks` counts forks by liars whose guilt was proved."""

    seeds: int = 0
    outer_steps: int = 0
    commits: int = 0
    skips: int = 0
    restarts: int = 0
    violations: int = 0
    stuck: int = 0
    forks: int = 0
    pausing: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    failures: tuple[SeedFailure, ...] = ()

    def __add__(self, more: CampaignSums) -> CampaignSums:
        sums = {it.name: getattr(self, it.name) + getattr(more, it.name) for it in fields(self)}
        sums["virtual_s"], sums["cpu_s"] = round(sums["virtual_s"], 1), round(sums["cpu_s"], 3)
        sums["failures"] = sums["failures"][:FAILURES_KEPT]
        return CampaignSums(**sums)

    @property
    def good(self) -> bool:
        return not self.violations and not self.stuck

    @property
    def outer_steps_per_s(self) -> float:
        """Outer steps per second of processor time, independent of other load."""
        return round(self.outer_steps / max(self.cpu_s, 1e-9), 1)


Known = Mapping[range, CampaignSums]
"""Results of batches that have already been run."""

RecordBatch = Callable[[range, CampaignSums], None]
"""Called as keep(seeds, sums) when a batch is done."""


def run_campaign(
    plan: CampaignPlan,
    *,
    processes: int = 1,
    print_line: PrintLine = lambda text: None,
    known: Known | None = None,
    keep: RecordBatch = lambda seeds, sums: None,
) -> CampaignSums:
    """Run all batches that are not `known`, and return the sum of all results, known ones included.
    `print_line` is called with the progress, and with each failing seed and its replay command. The
    sums do not depend on `processes`, except for CPU time.

    Raises:
        KeyboardInterrupt: after `print_line` was called with the progress; no process is left
        behind.
    """
    assert processes >= 1
    total = CampaignSums()
    spoken = time.monotonic()
    try:
        for sums in _outcomes(plan, processes, known or {}, keep):
            total += sums
            for failure in sums.failures:
                replay = plan.replay(failure.seed)
                print_line(f"seed {failure.seed} failed: {failure.why}\n  replay: {replay}")
            if time.monotonic() - spoken > PROGRESS_S:
                spoken = time.monotonic()
                print_line(_so_far(plan, total))
    except KeyboardInterrupt:
        print_line(f"interrupted: {_so_far(plan, total)}")
        raise
    return total


def _so_far(plan: CampaignPlan, total: CampaignSums) -> str:
    return f"{total.seeds} of {plan.seeds} seeds, {total.violations + total.stuck} failed"


def _outcomes(
    plan: CampaignPlan, processes: int, done: Known, keep: RecordBatch
) -> Iterator[CampaignSums]:
    """Yield the results of the batches in their order, each as soon as it is known."""
    missing = [seeds for seeds in plan.batches() if seeds not in done]
    with _mapping(processes) as map_in_order:
        fresh = iter(map_in_order(partial(run_batch, plan), missing))
        for seeds in plan.batches():
            sums = done.get(seeds)
            if sums is None:
                sums = next(fresh)
                keep(seeds, sums)
            yield sums


Mapper = Callable[[Callable[[range], CampaignSums], list[range]], Iterable[CampaignSums]]


@contextmanager
def _mapping(processes: int) -> Iterator[Mapper]:
    """Yield a function like `map` that runs in this process or in a pool of processes. The pool
    ends when the `with` block ends, also after an interrupt."""
    if processes == 1:
        yield map
        return
    with Pool(processes, initializer=_leave_interrupts_to_the_parent) as pool:
        yield pool.imap


def _leave_interrupts_to_the_parent() -> None:
    """Ignore Ctrl-C, and end without output when the pool sends SIGTERM. The handlers inherited
    from the command would print a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_batch(plan: CampaignPlan, seeds: range) -> CampaignSums:
    """Run these seeds one after another in this process, and return the sum of their results."""
    total = CampaignSums()
    began = time.process_time()
    for seed in seeds:
        it = simulate(seed, peers=plan.peers, steps=plan.steps, profile=plan.profile)
        why = "; ".join(it.violations[:3]) or it.stuck
        total += CampaignSums(
            seeds=1,
            outer_steps=it.outer_steps,
            commits=it.commits,
            skips=it.skips,
            restarts=it.restarts,
            violations=bool(it.violations),
            stuck=bool(it.stuck),
            forks=len(it.forks),
            pausing=it.pausing,
            virtual_s=it.virtual_s,
            failures=() if it.good else (SeedFailure(seed, why),),
        )
    return total + CampaignSums(cpu_s=time.process_time() - began)

"""`p2ptrain simulate`: run the real ledger code among simulated faults, in virtual time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.output import JsonOption, examples, progress, result_or_json
from p2ptrain.errors import ConfigError, counted

if TYPE_CHECKING:
    from p2ptrain.simulation.campaign import CampaignPlan, CampaignSums

EXAMPLES = examples(
    "p2ptrain simulate --seeds 1000 --json",
    "p2ptrain simulate --profile liars --seeds 500 --processes 4",
    "p2ptrain simulate --seeds 100000 --results chaos.jsonl    can be interrupted and resumed",
    "p2ptrain simulate --seeds 1 --first-seed 4711    run one seed again",
)

FAILED = 1


def simulate(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of runs.")] = 100,
    first_seed: Annotated[
        int, typer.Option("--first-seed", min=0, help="Seed of the first run.")
    ] = 0,
    peers: Annotated[
        int, typer.Option("--peers", min=1, max=100, help="Number of founders in each run.")
    ] = 5,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Outer steps of each run.")] = 20,
    profile: Annotated[
        str,
        typer.Option("--profile", help="Kinds of faults to inject. An unknown name prints a list."),
    ] = "chaos",
    processes: Annotated[
        int, typer.Option("--processes", "--jobs", min=1, help="Number of cores to use.")
    ] = 1,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            help="File for results. If it exists, its campaign is continued.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Test the consensus protocol in many simulated runs with faults.

    Peers crash, stop, lie and have wrong clocks; networks lose and delay messages, and split. The
    profile chooses the faults. Every step of every run is checked. If a seed fails, the command
    looks for the smallest case of that seed that still fails, and shows it.
    """
    from p2ptrain.simulation import PROFILES
    from p2ptrain.simulation.campaign import CampaignPlan, run_campaign
    from p2ptrain.simulation.results import Results

    if profile not in PROFILES:
        known = ", ".join(sorted(PROFILES))
        raise ConfigError(f"there is no profile {profile!r}", do=f"choose one of {known}")
    plan, began = CampaignPlan(seeds, first_seed, peers, steps, profile), time.monotonic()
    if results is None:
        sums = run_campaign(plan, processes=processes, print_line=progress)
        facts = _facts(plan, sums, time.monotonic() - began)
    else:
        book = Results(results, plan)
        sums = run_campaign(
            plan, processes=processes, print_line=progress, known=book.known, keep=book.record_batch
        )
        facts = _facts(plan, sums, time.monotonic() - began)
        book.end(facts)
    if not sums.good:
        _print_story(plan, sums)
    result_or_json(_words(sums), facts, as_json=as_json)
    if not sums.good:
        raise typer.Exit(FAILED)


def _print_story(plan: CampaignPlan, sums: CampaignSums) -> None:
    from p2ptrain.simulation import PROFILES
    from p2ptrain.simulation.shrink import FailingCase, shrink, transcript

    first = sums.failures[0]
    progress(f"looking for the smallest case of seed {first.seed} that still fails")
    small = shrink(FailingCase(first.seed, plan.peers, plan.steps, PROFILES[plan.profile]))
    for line in transcript(small):
        progress(line)


def _facts(plan: CampaignPlan, sums: CampaignSums, elapsed_s: float) -> dict[str, object]:
    return {
        "profile": plan.profile,
        "peers": plan.peers,
        "seeds": sums.seeds,
        "first_seed": plan.first_seed,
        "outer_steps": sums.outer_steps,
        "violations": sums.violations,
        "stuck": sums.stuck,
        "pausing": sums.pausing,
        "outer_steps_per_s": sums.outer_steps_per_s,
        "commits": sums.commits,
        "skips": sums.skips,
        "restarts": sums.restarts,
        "forks_proved": sums.forks,
        "virtual_s": sums.virtual_s,
        "elapsed_s": round(elapsed_s, 2),
        "cpu_s": round(sums.cpu_s, 2),
        "failed_seeds": [failure.seed for failure in sums.failures],
    }


def _words(sums: CampaignSums) -> str:
    return (
        f"{counted(sums.seeds, 'run')}, {counted(sums.outer_steps, 'outer step')}, "
        f"{counted(sums.restarts, 'restart')}: {counted(sums.violations, 'violation')}, "
        f"{sums.stuck} stuck, {sums.pausing} ended in a long "
        f"pause, {sums.outer_steps_per_s:g} outer steps per second per core"
    )

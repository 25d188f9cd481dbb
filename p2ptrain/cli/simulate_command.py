"""`p2ptrain simulate`: the ledger of real nodes in hostile worlds, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.errors import ConfigError

if TYPE_CHECKING:
    from p2ptrain.testing.simulation.campaign import Campaign, Plan

SIMULATE_EXAMPLES = examples(
    "p2ptrain simulate --seeds 1000 --json",
    "p2ptrain simulate --profile liars --seeds 500 --jobs 4",
    "p2ptrain simulate --seeds 1 --first-seed 4711    run one seed again",
)

FAILED = 1


def simulate(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many runs.")] = 100,
    first_seed: Annotated[int, typer.Option("--first-seed", min=0, help="Their first seed.")] = 0,
    peers: Annotated[int, typer.Option("--peers", min=1, max=100, help="Founders of each.")] = 5,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Outer steps of each.")] = 20,
    profile: Annotated[str, typer.Option("--profile", help="What goes wrong.")] = "chaos",
    processes: Annotated[int, typer.Option("--jobs", min=1, help="Cores to use.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Try to break the agreement: many seeded runs, each checked line by line.

    Peers crash, stop, lie, drift; networks lose, delay and cut, as the profile says. The first seed
    that fails is made smaller until it is a short story.
    """
    from p2ptrain.testing.simulation import PROFILES
    from p2ptrain.testing.simulation.campaign import Plan, run_campaign

    if profile not in PROFILES:
        known = ", ".join(sorted(PROFILES))
        raise ConfigError(f"there is no profile {profile!r}", do=f"choose one of {known}")
    plan = Plan(seeds, first_seed, peers, steps, profile)
    campaign = run_campaign(plan, processes=processes, say=progress)
    if not campaign.good:
        _tell_story(plan, campaign)
    if as_json:
        result_json(_facts(plan, campaign))
    else:
        result(_words(campaign))
    if not campaign.good:
        raise typer.Exit(FAILED)


def _tell_story(plan: Plan, campaign: Campaign) -> None:
    from p2ptrain.testing.simulation import PROFILES
    from p2ptrain.testing.simulation.shrink import Case, shrink, transcript

    first = campaign.failures[0]
    progress(f"making seed {first.seed} smaller")
    small = shrink(Case(first.seed, plan.peers, plan.steps, PROFILES[plan.profile]))
    for line in transcript(small):
        progress(line)


def _facts(plan: Plan, campaign: Campaign) -> dict[str, object]:
    return {
        "profile": plan.profile,
        "peers": plan.peers,
        "seeds": campaign.seeds,
        "first_seed": plan.first_seed,
        "outer_steps": campaign.outer_steps,
        "violations": campaign.violations,
        "stuck": campaign.stuck,
        "outer_steps_per_s": campaign.outer_steps_per_s,
        "commits": campaign.commits,
        "skips": campaign.skips,
        "restarts": campaign.restarts,
        "forks_proved": campaign.forks,
        "virtual_s": campaign.virtual_s,
        "elapsed_s": campaign.elapsed_s,
        "cpu_s": campaign.cpu_s,
        "failed_seeds": [report.seed for report in campaign.failures],
    }


def _words(campaign: Campaign) -> str:
    return (
        f"{campaign.seeds} runs, {campaign.outer_steps} outer steps, {campaign.restarts} restarts: "
        f"{campaign.violations} violations, {campaign.stuck} stuck, "
        f"{campaign.outer_steps_per_s:g} outer steps a second of one core"
    )

"""`p2ptrain run`: create and manage a run as its organiser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2ptrain.cli.homes import (
    HomeOption,
    check_asked_for,
    open_home,
    organiser_of,
    peer_from,
    run_of,
)
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json, result_or_json
from p2ptrain.errors import ConfigError
from p2ptrain.prepare.run_summary import run_facts, run_lines
from p2ptrain.suggested_command import to_paste

app = typer.Typer(
    help="Make, check, publish, amend and show a run.",
    epilog=examples(
        "p2ptrain run new --out run.toml",
        "p2ptrain run check run.toml",
        "p2ptrain run publish run.toml --allow 12D3KooW…",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)

RunFileArgument = Annotated[
    Path, typer.Argument(metavar="RUN.TOML", help="The run file.", show_default=False)
]


@app.command(epilog=examples("p2ptrain run new", "p2ptrain run new --out my.toml --size tiny"))
def new(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write.")] = Path(
        "run.toml"
    ),
    size: Annotated[
        str,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="Run file to start from: demo, tiny, or a recipe in configs/.",
        ),
    ] = "demo",
    as_json: JsonOption = False,
) -> None:
    """Write a commented run file to start from."""
    from p2ptrain.config.samples import sample

    text = sample(size)
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as exc:
        raise ConfigError(f"{out} already exists", do="choose another name with --out") from exc
    except OSError as exc:
        raise ConfigError(
            f"{out} cannot be written: {exc.strerror}", do="choose another place with --out"
        ) from exc
    if as_json:
        result_json({"file": str(out.absolute())})
    progress(
        f"wrote {out}, a run file to start from. Edit it, then run: p2ptrain run publish {out}"
    )


CheckPeers = Annotated[
    list[int] | None,
    typer.Option(
        "--peers",
        min=2,
        metavar="N",
        help="Number of peers that train; may be repeated.",
        show_default="2, 4, 8 and 16",
    ),
]


@app.command(
    epilog=examples(
        "p2ptrain run check run.toml",
        "p2ptrain run check run.toml --peers 4 --peers 16 --tokens-per-s 25000",
        "p2ptrain run check run.toml --seed /ip4/203.0.113.7/tcp/4201/p2p/12D3KooW…",
    )
)
def check(
    run_file: RunFileArgument,
    peers: CheckPeers = None,
    tokens_per_s: Annotated[
        float | None,
        typer.Option(
            "--tokens-per-s",
            min=0.001,
            max=1e12,
            help="Tokens that one peer trains on per second.",
            show_default="the estimated rate of the fewest H100s that can hold the model",
        ),
    ] = None,
    seed: Annotated[
        list[str] | None,
        typer.Option(
            "--seed",
            metavar="ADDR",
            help="Address that you hand out to volunteers; may be repeated.",
        ),
    ] = None,
    founders: Annotated[
        int,
        typer.Option(
            "--founders", min=1, help="Number of founders that you will publish the run with."
        ),
    ] = 1,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate a run's cost, and warn about doubtful settings.

    The cost is memory, disk space, traffic and time. If the run is already published in this home,
    the amendments that members have agreed on are included. Exits with status 2 if the run cannot
    work.
    """
    from p2ptrain.cli.commands.amended_run_file import as_amended
    from p2ptrain.cli.commands.run_check import absences, facts, field_faults, lines
    from p2ptrain.config.run_file import load_run_file
    from p2ptrain.prepare.run_advice import lints_of
    from p2ptrain.prepare.run_cost import costs_of

    amended = as_amended(load_run_file(run_file), home)
    costs = costs_of(amended.run, sorted(set(peers or (2, 4, 8, 16))), tokens_per_s)
    lints = lints_of(amended.run, costs, seed or (), founders=founders)
    lints += absences(amended.run, beside=run_file.parent)
    lints += field_faults(amended.run, beside=run_file.parent)
    if as_json:
        result_json(facts(amended, costs, lints))
    else:
        for line in lines(amended, costs, lints):
            result(line)
    if any(lint.is_fault for lint in lints):
        raise typer.Exit(ConfigError.exit_code)


@app.command(
    epilog=examples(
        "p2ptrain run publish run.toml",
        "p2ptrain run publish run.toml --home ORGANISER --allow 12D3KooW… --allow 12D3KooX…",
        "p2ptrain run publish run.toml --founder SEED1 --founder SEED2 --founder SEED3",
    )
)
def publish(
    run_file: RunFileArgument,
    home: HomeOption = None,
    founder: Annotated[
        list[str] | None,
        typer.Option(
            "--founder",
            metavar="PEERID",
            help=(
                "Peer that votes from the start; in an open run only founders vote. May be "
                "repeated."
            ),
            show_default="yourself",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="PEERID", help="Peer that may take part; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prepare and sign a run, and print its id.

    Packs the data, creates the initial weights, and signs the manifest and the allowlist. You and
    the founders are always on the allowlist.
    """
    from p2ptrain.cli.commands.admission.proposals import offer
    from p2ptrain.prepare.publish import first_list, publish_run

    where = open_home(home, to_make=True)
    published = publish_run(
        run_file,
        where,
        founders=[peer_from(peer) for peer in founder or ()],
        allowed=[peer_from(peer) for peer in allow or ()],
        print_line=progress,
    )
    result_or_json(published.id, run_facts(published), as_json=as_json)
    if allow and published.manifest.organisers.signatures_min > 1:
        listed = first_list(
            published, organiser_of(where, published), [peer_from(peer) for peer in allow]
        )
        offered = offer(where, published, listed.signed, quiet=True)
        progress(f"the peers of --allow are on the list that is proposed in {offered.file}")
    progress(f"start a seed for the run: {to_paste(where.root, 'node --seed')}")


FarOption = Annotated[
    bool,
    typer.Option(
        "--far",
        help=(
            "Allow a learning rate to change by more than a factor of ten, or the amendment to "
            "take effect more than a hundred outer steps from now."
        ),
    ),
]


AmendInnerSteps = Annotated[
    int | None,
    typer.Option(
        "--inner-steps",
        metavar="H",
        help="Inner steps between two averages of the same parameters; inner.steps in a run file.",
    ),
]

AmendOuterLr = Annotated[
    float | None, typer.Option("--outer-lr", help="Outer learning rate, as outer.lr in a run file.")
]

AmendOuterMomentum = Annotated[
    float | None,
    typer.Option("--outer-momentum", help="Outer momentum, as outer.momentum in a run file."),
]

AmendFromStep = Annotated[
    int,
    typer.Option(
        "--from-step", metavar="N", help="First outer step to which the amendment applies."
    ),
]


@app.command(
    epilog=examples(
        "p2ptrain run amend tiny --from-step 40 --lr 0.001",
        "p2ptrain run amend tiny --from-step 80 --inner-steps 200 --codec int4 --home ORGANISER",
    )
)
def amend(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's name, or the beginning of its id.")
    ],
    from_step: AmendFromStep,
    lr: Annotated[
        float | None, typer.Option("--lr", help="Peak of the inner learning rate.")
    ] = None,
    inner_steps: AmendInnerSteps = None,
    codec: Annotated[
        str | None, typer.Option("--codec", help="Codec: fp32, fp16, int8 or int4.")
    ] = None,
    codec_block: Annotated[
        int | None,
        typer.Option(
            "--codec-block",
            help="Number of elements that the codec quantises with the same scale.",
            show_default="the codec's default",
        ),
    ] = None,
    outer_lr: AmendOuterLr = None,
    outer_momentum: AmendOuterMomentum = None,
    far: FarOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a run, starting at a later outer step.

    Only an organiser can do this. If several organisers must sign, the output is a proposal.

    The change takes effect at that step if the members have agreed
    on it by then. They agree on it by agreeing on a roster (list of members) that names it.
    """
    from p2ptrain.cli.commands.admission.proposals import passed_on
    from p2ptrain.cli.commands.run_amend import amend as amended
    from p2ptrain.cli.commands.run_amend import wanted_amendment

    where = open_home(home)
    held = run_of(where)
    check_asked_for(run, held)
    changes = {
        "lr": lr,
        "inner_steps": inner_steps,
        "codec": codec,
        "codec_block": codec_block,
        "outer_lr": outer_lr,
        "outer_momentum": outer_momentum,
    }
    wanted = wanted_amendment(held, from_step, changes)
    made = amended(where, held, organiser_of(where, held), wanted, far=far)
    facts = made.amendment.facts | {"digest": made.digest}
    if passed_on(where, held, made, as_json=as_json, more=facts):
        return
    words = f"amendment {made.amendment.number}: {made.amendment.words}"
    result_or_json(words, facts, as_json=as_json)
    progress(
        f"the amendment takes effect at outer step {made.amendment.step} if the members have "
        f"agreed on it by then; to check, run: {to_paste(where.root, 'status')}"
    )


@app.command(epilog=examples("p2ptrain run show", "p2ptrain run show --home NODE --json"))
def show(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show the run in this home, and its amendments.

    The output shows what the organiser signed. p2ptrain status shows which amendments the members
    have agreed on.
    """
    from p2ptrain.run import load_amendments

    where = open_home(home, to_write=False)
    run = run_of(where)
    amendments = [each.amendment for each in load_amendments(where.amendments, run)]
    if as_json:
        result_json(run_facts(run) | {"amendments": [each.facts for each in amendments]})
        return
    for line in run_lines(run):
        result(line)
    for each in sorted(amendments, key=lambda each: each.number):
        result(f"amended   {each.number}: {each.words}")

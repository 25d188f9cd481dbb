"""`p2ptrain bench join|snapshot|replay`: measure how fast a state (θ and m) is fetched, written and
updated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2ptrain.cli.commands.bench_output import (
    EncryptionOption,
    RoundsOption,
    hosts_of,
    print_lines,
    reported,
)
from p2ptrain.cli.output import JsonOption, examples

commands = typer.Typer(rich_markup_mode=None)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Run file for --disturbance.",
        exists=True,
        dir_okay=False,
        show_default="the demo's",
    ),
]


JoinAddresses = Annotated[
    str,
    typer.Option(
        "--addresses",
        metavar="ADDR,…",
        help=(
            "Address of the joiner, then of each peer; NAMESPACE/ADDR runs one in that "
            "network namespace."
        ),
        show_default="127.0.0.1",
    ),
]

JoinDisturbance = Annotated[
    int,
    typer.Option(
        "--disturbance",
        min=0,
        metavar="JOINS",
        help=(
            "Measure only how much this many joins slow down a member that trains; uses real nodes "
            "and needs root."
        ),
    ),
]


@commands.command(
    epilog=examples(
        "p2ptrain bench join",
        "p2ptrain bench join --peers 4 --megabytes 1000 --garbage 1 --dying 1 --no-http --json",
    )
)
def join(
    peers: Annotated[
        int, typer.Option("--peers", min=1, max=64, help="Number of peers that serve the snapshot.")
    ] = 4,
    megabytes: Annotated[
        int, typer.Option("--megabytes", min=1, help="Size of the snapshot in MB.")
    ] = 256,
    encryption: EncryptionOption = "none,tls",
    streams: Annotated[
        int, typer.Option("--streams", min=1, max=16, help="Connections to each peer.")
    ] = 1,
    garbage: Annotated[
        int, typer.Option("--garbage", min=0, help="Number of peers that send wrong chunks.")
    ] = 0,
    dying: Annotated[
        int, typer.Option("--dying", min=0, help="Number of peers that stop half-way.")
    ] = 0,
    rounds: RoundsOption = 3,
    http: Annotated[
        bool, typer.Option("--http/--no-http", help="Measure plain HTTP as well.")
    ] = True,
    addresses: JoinAddresses = "",
    disturbance: JoinDisturbance = 0,
    up: Annotated[
        float, typer.Option("--up-mbit", min=0.1, help="Upload limit in Mbit/s, for --disturbance.")
    ] = 10.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a snapshot from peers, and compare with plain HTTP.

    The peers are processes on this machine. A chunk counts as fetched once it is checked and on
    disk.
    """
    if disturbance:
        from p2ptrain.bench import disturbance as members
        from p2ptrain.config.samples import sample

        text = config.read_text("utf-8") if config else sample("demo")
        return print_lines(members.measure(disturbance, up, text), as_json)
    from p2ptrain.bench.join import measure
    from p2ptrain.bench.joining import settings_of

    with reported(ValueError):
        kinds = encryption.split(",")
        settings = settings_of(kinds, peers, megabytes * 10**6, streams, garbage, dying)
        hosts = hosts_of(addresses, peers + 1)
    lines = [measure(each, rounds, hosts, http_too=http) for each in settings]
    print_lines((line for each in lines for line in each), as_json)


@commands.command(
    epilog=examples("p2ptrain bench snapshot", "p2ptrain bench snapshot --beside-trainer 5")
)
def snapshot(
    megabytes: Annotated[
        int, typer.Option("--megabytes", min=8, help="Size of θ and m in MB.")
    ] = 512,
    rounds: RoundsOption = 3,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Folder to write to.", exists=True),
    ] = None,
    turns: Annotated[
        int,
        typer.Option(
            "--beside-trainer",
            min=0,
            metavar="TURNS",
            help=(
                "Measure only how much snapshots slow down a trainer that uses all cores, in this "
                "many turns."
            ),
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write snapshots of θ and m (weights and outer momentum), and compare with dd."""
    from p2ptrain.bench import beside_trainer
    from p2ptrain.bench.processes import ProcessFailed
    from p2ptrain.bench.snapshot import measure

    numel = megabytes * 10**6 // 8
    if not turns:
        return print_lines(measure(numel, rounds, folder), as_json)
    with reported(ProcessFailed, do="read the output of the process, which is shown above"):
        trainer = beside_trainer.default_trainer()
        print_lines(beside_trainer.measure(trainer, numel, turns, folder), as_json)


@commands.command(
    epilog=examples("p2ptrain bench replay", "p2ptrain bench replay --codec int4 --json")
)
def replay(
    elements: Annotated[
        int, typer.Option("--elements", min=1, help="Number of parameters.")
    ] = 100_000_000,
    threads: Annotated[
        int, typer.Option("--threads", min=1, max=64, help="Threads that apply updates, or copy.")
    ] = 2,
    codec: Annotated[str, typer.Option("--codec", help="Codec: fp32, fp16, int8, int4.")] = "int8",
    rounds: RoundsOption = 5,
    as_json: JsonOption = False,
) -> None:
    """Apply updates to θ and m, and compare with memcpy.

    Also compares the size of the updates with that of a snapshot. Takes 13 bytes of memory for each
    parameter.
    """
    from p2ptrain import kernels
    from p2ptrain.bench.replay import measure

    with reported(ValueError):
        chosen = kernels.codec(codec, 256)  # type: ignore[arg-type]  # checked there
    print_lines(measure(elements, threads, rounds, chosen), as_json)

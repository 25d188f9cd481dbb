"""`p2ptrain node`: from options to a NodeConfig, and on to the node itself."""

from __future__ import annotations

from typing import Annotated

import typer

from p2ptrain.cli.homes import HomeOption, home_path, open_home
from p2ptrain.cli.machine import allow_open_files
from p2ptrain.cli.output import examples
from p2ptrain.config.node import (
    DATA_LISTEN,
    LISTEN,
    NodeConfig,
    parse_host_port,
    parse_rate,
    parse_size,
    parse_snapshots,
)
from p2ptrain.errors import ConfigError
from p2ptrain.ids import RunId

EXAMPLES = examples(
    "p2ptrain node --bootstrap /ip4/203.0.113.7/tcp/4201/p2p/12D3KooW…",
    "p2ptrain node --seed --listen /ip4/0.0.0.0/tcp/4201 --data-listen 0.0.0.0:4202",
    "p2ptrain node --bootstrap ADDRESS --ranks 2 --device cuda --limit-up 20Mbit",
)


def node(
    home: HomeOption = None,
    bootstrap: Annotated[
        list[str] | None,
        typer.Option("--bootstrap", metavar="ADDR", help="A peer to start from; may be repeated."),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", metavar="ADDR", help="Where to listen.", show_default=LISTEN),
    ] = None,
    announce: Annotated[
        list[str] | None,
        typer.Option("--announce", metavar="ADDR", help="An address under which others reach us."),
    ] = None,
    data_listen: Annotated[
        str,
        typer.Option("--data-listen", metavar="HOST:PORT", help="Where weights and data come in."),
    ] = DATA_LISTEN,
    seed: Annotated[
        bool, typer.Option("--seed", help="Vote and serve the run; train nothing.")
    ] = False,
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", help="Trainer processes.")] = 1,
    ranks_listen: Annotated[
        str | None,
        typer.Option(
            "--ranks-listen",
            metavar="HOST:PORT",
            help="Start no ranks: torchrun does, on one host or several, and they call here.",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", help="CPU threads of each of them.")
    ] = 1,
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.")
    ] = "auto",
    precision: Annotated[
        str, typer.Option("--precision", metavar="TYPE", help="auto (bf16 on GPUs), fp32 or bf16.")
    ] = "auto",
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the model: faster after a slow first step.")
    ] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Keep few activations: less memory, a third slower.")
    ] = False,
    micro_batch: Annotated[
        int, typer.Option("--micro-batch", metavar="N", help="Sequences at once; 0: what fits.")
    ] = 0,
    keep_inner: Annotated[
        bool,
        typer.Option(
            "--keep-inner/--no-keep-inner",
            help="Keep the inner optimizer on disk, so that a restart loses nothing of it.",
        ),
    ] = True,
    limit_up: Annotated[
        str | None,
        typer.Option(
            "--limit-up",
            metavar="RATE",
            help="Send bulk data at most so fast: 8Mbit, 2MB (a second).",
        ),
    ] = None,
    keep_snapshots: Annotated[
        str,
        typer.Option(
            "--keep-snapshots",
            metavar="N",
            help="Keep so many snapshots, and the updates since the oldest; or all.",
        ),
    ] = "2",
    data_cache: Annotated[
        str, typer.Option("--data-cache", metavar="SIZE", help="Keep so much data; a seed, all.")
    ] = "8GB",
    scrub: Annotated[
        str,
        typer.Option(
            "--scrub", metavar="RATE", help="Read the store again so fast, to find rot; or off."
        ),
    ] = "8MB",
    keep_entries: Annotated[
        int | None,
        typer.Option(
            "--keep-entries",
            metavar="N",
            help="Keep N entries of the ledger, forget older ones behind a snapshot.",
            show_default="all",
        ),
    ] = None,
    trust_checkpoint: Annotated[
        str | None,
        typer.Option(
            "--trust-checkpoint",
            metavar="HEIGHT:DIGEST",
            help="Believe the ledger up to there, where nobody keeps its older entries.",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUNID", help="Take part in this run or in none.")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End with status 6 instead of waiting for approval.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Agree to a new run unasked.")] = False,
    mdns: Annotated[bool, typer.Option("--mdns/--no-mdns", help="Find peers on this LAN.")] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, help="Show tracebacks of errors.", show_default=False
        ),
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Tell errors only.")] = False,
) -> None:
    """Take part in a run, or serve one.

    The node finds the run, asks whether you agree to it (once), fetches its state, trains, and
    exchanges with the others.
    Ctrl-C once leaves kindly, twice at once.
    """
    if quiet and verbose:
        raise ConfigError("--quiet and --verbose exclude each other", do="give one of them")
    data_host, data_port = parse_host_port(data_listen)
    ranks_host, ranks_port = parse_host_port(ranks_listen) if ranks_listen else ("", 0)
    config = NodeConfig(
        home=home_path(home),
        bootstrap=tuple(bootstrap or ()),
        listen=tuple(listen or (LISTEN,)),
        announce=tuple(announce or ()),
        data_host=data_host,
        data_port=data_port,
        seed=seed,
        ranks=ranks,
        ranks_host=ranks_host,
        ranks_port=ranks_port,
        threads=threads,
        device=device,  # type: ignore[arg-type]  # NodeConfig itself checks it
        precision=precision,  # type: ignore[arg-type]  # likewise
        compile=compile,
        recompute=recompute,
        micro_batch=micro_batch,
        keep_inner=keep_inner,
        limit_up_bytes_per_s=None if limit_up is None else parse_rate(limit_up),
        keep_snapshots=parse_snapshots(keep_snapshots),
        data_cache_bytes=parse_size(data_cache),
        scrub_bytes_per_s=None if scrub == "off" else parse_rate(scrub),
        wait_for_approval=not no_wait,
        keep_entries=keep_entries,
        trust_checkpoint=trust_checkpoint,
        run=None if run is None else RunId(run),
        assume_yes=yes,
        mdns=mdns,
        verbosity=-1 if quiet else verbose,
    )
    raise typer.Exit(start(config))


def start(config: NodeConfig) -> int:
    """Load what is slow to load, and run. What can be checked before that is."""
    open_home(config.home)
    allow_open_files()
    from p2ptrain.node.main import run_node

    return run_node(config)

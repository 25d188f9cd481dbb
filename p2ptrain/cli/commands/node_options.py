"""The options of `p2ptrain node`, in the groups of its help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from p2ptrain.config.node import DATA_LISTEN, LISTEN


@dataclass(frozen=True, slots=True)
class Reach:
    """Options for finding peers and being found."""

    bootstrap: Annotated[
        list[str] | None,
        typer.Option("--bootstrap", metavar="ADDR", help="A peer to start from; may be repeated."),
    ] = None
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen", metavar="ADDR", help="Where to listen for peers.", show_default=LISTEN
        ),
    ] = None
    announce: Annotated[
        list[str] | None,
        typer.Option("--announce", metavar="ADDR", help="An address under which others reach us."),
    ] = None
    data_listen: Annotated[
        str,
        typer.Option("--data-listen", metavar="HOST:PORT", help="Where to listen for bulk data."),
    ] = DATA_LISTEN


@dataclass(frozen=True, slots=True)
class Training:
    """Options for training and devices."""

    seed: Annotated[
        bool,
        typer.Option(
            "--seed", help="Serve the run and train nothing; it votes if it founded the run."
        ),
    ] = False
    ranks: Annotated[
        int, typer.Option("--ranks", metavar="N", help="Trainer processes: one a GPU.")
    ] = 1
    ranks_listen: Annotated[
        str | None,
        typer.Option(
            "--ranks-listen",
            metavar="HOST:PORT",
            help="Start no ranks: torchrun does, on one host or several, and they call here.",
        ),
    ] = None
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", help="CPU threads of each rank.")
    ] = 1
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.")
    ] = "auto"
    precision: Annotated[
        str, typer.Option("--precision", metavar="TYPE", help="auto (bf16 on GPUs), fp32 or bf16.")
    ] = "auto"
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the model: faster after a slow first step.")
    ] = False
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Keep few activations: less memory, a third slower.")
    ] = False
    micro_batch: Annotated[
        int, typer.Option("--micro-batch", metavar="N", help="Sequences at once; 0: all that fit.")
    ] = 0
    keep_inner: Annotated[
        bool,
        typer.Option(
            "--keep-inner/--no-keep-inner",
            help="Keep the inner optimizer on disk, so that a restart loses nothing of it.",
        ),
    ] = True


@dataclass(frozen=True, slots=True)
class Limits:
    """Options that limit sending, reading and storage."""

    limit_up: Annotated[
        str | None,
        typer.Option(
            "--limit-up",
            metavar="RATE",
            help="Send bulk data no faster than this a second, such as 8Mbit or 2MB.",
        ),
    ] = None
    keep_snapshots: Annotated[
        str,
        typer.Option(
            "--keep-snapshots",
            metavar="N",
            help="Keep the newest N snapshots, and the updates since the oldest; or all.",
        ),
    ] = "2"
    data_cache: Annotated[
        str,
        typer.Option(
            "--data-cache", metavar="SIZE", help="Keep this much training data. A seed keeps all."
        ),
    ] = "8GB"
    scrub: Annotated[
        str,
        typer.Option(
            "--scrub",
            metavar="RATE",
            help="Read the store again at this pace, to find rot; or off.",
        ),
    ] = "8MB"
    keep_entries: Annotated[
        int | None,
        typer.Option(
            "--keep-entries",
            metavar="N",
            help="Keep at least N entries of the ledger, and forget older ones behind a snapshot.",
            show_default="all",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Joining:
    """Options that choose the run and answer questions in advance."""

    trust_checkpoint: Annotated[
        str | None,
        typer.Option(
            "--trust-checkpoint",
            metavar="HEIGHT:DIGEST",
            help="Believe the ledger up to there, where nobody keeps its older entries.",
        ),
    ] = None
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUNID", help="Take part in this run or in none.")
    ] = None
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End with status 6 instead of waiting for approval.")
    ] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Agree to a new run unasked.")] = False
    mdns: Annotated[bool, typer.Option("--mdns/--no-mdns", help="Find peers on this LAN.")] = False


@dataclass(frozen=True, slots=True)
class Telling:
    """Options for the output on the terminal."""

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Tell errors only.")] = False

"""The options of `p2ptrain node`, in groups. `ckpt` and `store` use some of them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from p2ptrain.config.node import (
    DATA_LISTEN,
    PAGE_PORT,
    RELAY_EDGES,
    SEED_DATA_PORT,
    SEED_PORT,
    parse_data_listen,
)

BootstrapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bootstrap",
        metavar="ADDR",
        help="Address of a peer of the run, or an invitation; may be repeated.",
    ),
]
ListenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        metavar="ADDR",
        help="Address to listen on for peers; may be repeated.",
        show_default="all addresses, IPv4 and IPv6, at a free port; for a seed, port 4201",
    ),
]
DataListenOption = Annotated[
    str | None,
    typer.Option(
        "--data-listen",
        metavar="HOST:PORT",
        help="Address to listen on for bulk data. Without HOST: all addresses, IPv4 and IPv6.",
        show_default=":0, a free port; for a seed, :4202",
    ),
]
PortMappingOption = Annotated[
    bool,
    typer.Option(
        "--port-mapping/--no-port-mapping",
        help="Ask your router to open both ports, by PCP, NAT-PMP or UPnP.",
    ),
]
NoWaitOption = Annotated[
    bool,
    typer.Option(
        "--no-wait",
        help=(
            "Exit with status 5 or 6 instead of waiting for a peer of the run, or for the "
            "organiser's approval."
        ),
    ),
]


def ports_of(
    listen: list[str] | None, data_listen: str | None, *, seed: bool
) -> tuple[int, str, int]:
    """Return the port for a node without `listen`, and the host and port of its data plane. A seed
    has fixed ports, because its address is handed out. Raises ConfigError."""
    usual = f":{SEED_DATA_PORT}" if seed else DATA_LISTEN
    data_host, data_port = parse_data_listen(data_listen or usual)
    return SEED_PORT if seed and not listen else 0, data_host, data_port


@dataclass(frozen=True, slots=True)
class ReachOptions:
    """Options for finding peers and being found."""

    bootstrap: BootstrapOption = None
    listen: ListenOption = None
    announce: Annotated[
        list[str] | None,
        typer.Option(
            "--announce",
            metavar="ADDR",
            help="Address at which other peers reach this node; may be repeated.",
        ),
    ] = None
    data_listen: DataListenOption = None
    data_announce: Annotated[
        str | None,
        typer.Option(
            "--data-announce",
            metavar="HOST:PORT",
            help="IP address and port at which other peers reach this node for bulk data.",
        ),
    ] = None
    port_mapping: PortMappingOption = True


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options for training and devices."""

    seed: Annotated[
        bool,
        typer.Option(
            "--seed",
            help="Serve the run without training. A seed votes if it is a founder of the run.",
        ),
    ] = False
    ranks: Annotated[
        int,
        typer.Option("--ranks", metavar="N", help="Number of trainer processes, one for each GPU."),
    ] = 1
    ranks_listen: Annotated[
        str | None,
        typer.Option(
            "--ranks-listen",
            metavar="HOST:PORT",
            help=(
                "Do not start trainers. Instead, torchrun starts the ranks, on one or more hosts, "
                "and the ranks connect to this address."
            ),
        ),
    ] = None
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", help="CPU threads of each rank.")
    ] = 1
    device: Annotated[
        str,
        typer.Option("--device", metavar="DEVICE", help="Device to train on: auto, cpu or cuda."),
    ] = "auto"
    precision: Annotated[
        str,
        typer.Option(
            "--precision", metavar="TYPE", help="Number format: auto (bf16 on GPUs), fp32 or bf16."
        ),
    ] = "auto"
    compile: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the model: later steps are faster, the first one is slow."
        ),
    ] = False
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="Recompute activations instead of keeping them: less memory, a third slower.",
        ),
    ] = False
    micro_batch: Annotated[
        int,
        typer.Option(
            "--micro-batch",
            metavar="N",
            help="Sequences that a rank computes at once; 0 means as many as fit.",
        ),
    ] = 0
    keep_inner: Annotated[
        bool,
        typer.Option(
            "--keep-inner/--no-keep-inner",
            help="Keep the inner optimizer's state on disk, so that a restart does not lose it.",
        ),
    ] = True


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Options that limit sending, reading and storage."""

    limit_up: Annotated[
        str | None,
        typer.Option(
            "--limit-up",
            metavar="RATE",
            help="Upload limit for bulk data per second, such as 8Mbit or 2MB.",
        ),
    ] = None
    relay: Annotated[
        bool,
        typer.Option(
            "--relay/--no-relay",
            help="Pass bytes on between members that cannot connect to each other.",
        ),
    ] = True
    relay_edges: Annotated[
        int,
        typer.Option("--relay-edges", metavar="N", help="Pairs of members to relay for at a time."),
    ] = RELAY_EDGES
    relay_per_day: Annotated[
        str,
        typer.Option("--relay-per-day", metavar="SIZE", help="Bytes to relay each day, at most."),
    ] = "20GB"
    keep_snapshots: Annotated[
        str,
        typer.Option(
            "--keep-snapshots",
            metavar="N",
            help=(
                "Number of newest snapshots to keep, with the updates after the oldest of these; "
                "or all."
            ),
        ),
    ] = "2"
    data_cache: Annotated[
        str,
        typer.Option(
            "--data-cache",
            metavar="SIZE",
            help="Disk space for training data. A seed keeps all data.",
        ),
    ] = "8GB"
    scrub: Annotated[
        str,
        typer.Option(
            "--scrub",
            metavar="RATE",
            help="Rate per second at which the store is re-read to detect corruption; or off.",
        ),
    ] = "8MB"
    keep_entries: Annotated[
        int | None,
        typer.Option(
            "--keep-entries",
            metavar="N",
            help="Keep at least N ledger entries; delete older ones once a snapshot replaces them.",
            show_default="all",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """Options that choose the run and answer questions in advance."""

    trust_checkpoint: Annotated[
        str | None,
        typer.Option(
            "--trust-checkpoint",
            metavar="HEIGHT:DIGEST",
            help=(
                "Trust the ledger up to this entry. Needed if no reachable peer keeps the older "
                "entries."
            ),
        ),
    ] = None
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUNID", help="Take part in this run only.")
    ] = None
    note: Annotated[
        str,
        typer.Option(
            "--note",
            metavar="TEXT",
            help="Message to the organiser, who sees it with your request: at most 80 characters.",
        ),
    ] = ""
    no_wait: NoWaitOption = False
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Agree to a new run without being asked.")
    ] = False
    mdns: Annotated[
        bool | None,
        typer.Option(
            "--mdns/--no-mdns",
            help="Find peers on the local network, and be found there. Without either option, the "
            "node looks there only if no address of an invitation leads to the run.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Options for the page, and for the output on the terminal."""

    page: Annotated[
        bool,
        typer.Option(
            "--page/--no-page", help="Serve a web page about the run, to this machine only."
        ),
    ] = True
    page_port: Annotated[
        int,
        typer.Option(
            "--page-port",
            metavar="PORT",
            help="Port of the page. If it is in use, the next free port is used.",
        ),
    ] = PAGE_PORT

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show errors only.")] = False
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Also show each change of state, and tracebacks of errors.",
        ),
    ] = False

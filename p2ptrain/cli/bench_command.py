"""`p2ptrain bench`: what this machine can do, against what else there is, in one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.errors import ConfigError

if TYPE_CHECKING:
    from p2ptrain.testing.bench.kernels import CodecReport, KernelReport
    from p2ptrain.testing.bench.lines import Line
    from p2ptrain.testing.bench.processes import Host

app = typer.Typer(
    help="Measure what this machine can do.",
    epilog=examples(
        "p2ptrain bench kernels",
        "p2ptrain bench snapshot --folder /srv",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    epilog=examples("p2ptrain bench kernels", "p2ptrain bench kernels --variant avx2 --json")
)
def kernels(
    elements: Annotated[int, typer.Option("--elements", min=1, help="fp32.")] = 25_000_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="The best of them counts.")] = 5,
    variant: Annotated[str, typer.Option("--variant", help="Demand one; the best if none.")] = "",
    block: Annotated[
        int | None, typer.Option("--block", min=1, max=4096, help="Of int8 and int4.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the kernels against memcpy and other quantisers, in one thread.

    Takes half a minute and a gigabyte of memory.
    """
    from p2ptrain.testing.bench.kernels import measure

    report = measure(elements, rounds, variant, block)
    if as_json:
        _tell(report.lines(), as_json)
    else:
        for line in lines_of(report):
            result(line)
    for name, ratio in report.peers.items():
        if ratio is None:
            progress(f"{name} is not here to compare with: pip install {name}")


Against = Annotated[
    str,
    typer.Option(
        "--against",
        help="gloo, sockets (bare TCP, 16 connections), hivemind (is downloaded into an "
        "environment that is thrown away), or none.",
    ),
]
Addresses = Annotated[
    str,
    typer.Option(
        "--addresses",
        metavar="ADDR,…",
        help="Of each peer; NAMESPACE/ADDR runs it in that network namespace.",
        show_default="127.0.0.1",
    ),
]
BadLink = Annotated[
    float | None,
    typer.Option(
        "--bad-link",
        min=0.1,
        help="Mbit/s of one link: compare the best order of a ring with the worst, no more.",
    ),
]


@app.command(
    epilog=examples(
        "p2ptrain bench allreduce",
        "p2ptrain bench allreduce --against gloo,hivemind --encryption tls",
        "p2ptrain bench allreduce --peers 16 --elements 100000 --schedules ring,direct,grid --json",
        "p2ptrain bench allreduce --bad-link 25 --elements 4000000",
    )
)
def allreduce(
    peers: Annotated[str, typer.Option("--peers", help="How many; several with commas.")] = "4",
    elements: Annotated[
        str, typer.Option("--elements", help="fp32; several sizes with commas.")
    ] = "25000000",
    schedules: Annotated[str, typer.Option("--schedules", help="ring, direct, grid.")] = "ring",
    codecs: Annotated[str, typer.Option("--codecs", help="fp32, fp16, int8, int4.")] = "int8",
    encryption: Annotated[str, typer.Option("--encryption", help="none, tls.")] = "none,tls",
    streams: Annotated[
        str, typer.Option("--streams", help="To a neighbour; several numbers with commas.")
    ] = "1",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="In one process.")] = 5,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Of processes.")] = 3,
    bad_link: BadLink = None,
    against: Against = "gloo",
    addresses: Addresses = "",
    as_json: JsonOption = False,
) -> None:
    """Average a vector among processes of this machine; others do the same beside it.

    Every combination of the options is measured in turn. A time is the slowest peer's.
    """
    from p2ptrain.testing.bench import orders
    from p2ptrain.testing.bench.allreduce import measure, settings_of
    from p2ptrain.testing.bench.processes import Host

    try:
        if bad_link is not None:
            found = orders.measure(int(peers), int(elements), bad_link * 1e6 / 8, rounds)
            return _tell(found.lines, as_json)
        settings = settings_of(
            [int(count) for count in peers.split(",")],
            [int(size) for size in elements.split(",")],
            schedules.split(","),
            codecs.split(","),
            encryption.split(","),
            [int(number) for number in streams.split(",")],
            repeats,
        )
        hosts = [Host.parse(each) for each in addresses.split(",")] if addresses else []
        others = [] if against == "none" else against.split(",")
        report = measure(settings, rounds, against=others, hosts=hosts)
    except ValueError as exc:
        raise ConfigError(f"this cannot be measured: {exc}", do="see --help for what can") from exc
    for name, why in report.missing.items():
        progress(f"{name} was not measured: {why}")
    _tell(report.lines, as_json)


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", help="Their run, then.", exists=True, dir_okay=False, show_default="the demo's"
    ),
]


@app.command(
    epilog=examples(
        "p2ptrain bench join",
        "p2ptrain bench join --peers 4 --megabytes 1000 --garbage 1 --dying 1 --no-http --json",
    )
)
def join(
    peers: Annotated[int, typer.Option("--peers", min=1, max=64, help="That serve.")] = 4,
    megabytes: Annotated[int, typer.Option("--megabytes", min=1, help="Of the snapshot.")] = 256,
    encryption: Annotated[str, typer.Option("--encryption", help="none, tls.")] = "none,tls",
    streams: Annotated[int, typer.Option("--streams", min=1, max=16, help="To each peer.")] = 1,
    garbage: Annotated[int, typer.Option("--garbage", min=0, help="Peers that lie.")] = 0,
    dying: Annotated[int, typer.Option("--dying", min=0, help="Peers that die half-way.")] = 0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="The best of them counts.")] = 3,
    http: Annotated[bool, typer.Option("--http/--no-http", help="Beside it.")] = True,
    addresses: Annotated[
        str,
        typer.Option(
            "--addresses",
            metavar="ADDR,…",
            help="Of the joiner and each peer; NAMESPACE/ADDR runs it in that network namespace.",
            show_default="127.0.0.1",
        ),
    ] = "",
    disturbance: Annotated[
        int,
        typer.Option(
            "--disturbance",
            min=0,
            metavar="JOINS",
            help="Instead: how much so many slow a member that trains; real nodes, as root.",
        ),
    ] = 0,
    up: Annotated[float, typer.Option("--up-mbit", min=0.1, help="Of each, then.")] = 10.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a snapshot from processes of this machine; plain HTTP does the same beside it.

    Every chunk is checked and on the disk when it counts.
    """
    if disturbance:
        from p2ptrain.config.samples import sample
        from p2ptrain.testing.bench import disturbance as members

        text = config.read_text("utf-8") if config else sample("demo")
        return _tell(members.measure(disturbance, up, text), as_json)
    from p2ptrain.testing.bench.joining import settings_of

    try:
        kinds = encryption.split(",")
        settings = settings_of(kinds, peers, megabytes * 10**6, streams, garbage, dying)
        hosts = _hosts(addresses, peers + 1)
    except ValueError as exc:
        raise ConfigError(f"this cannot be measured: {exc}", do="see --help for what can") from exc
    from p2ptrain.testing.bench.join import measure

    lines = [measure(each, rounds, hosts, http_too=http) for each in settings]
    _tell((line for each in lines for line in each), as_json)


def _hosts(addresses: str, count: int) -> list[Host]:
    """Raises ValueError: they are not so many, or one is none."""
    from p2ptrain.testing.bench.processes import Host

    if not addresses:
        return [Host()] * count
    hosts = [Host.parse(each) for each in addresses.split(",")]
    if len(hosts) != count:
        raise ValueError(f"{len(hosts)} addresses, not {count}")
    return hosts


@app.command(epilog=examples("p2ptrain bench snapshot", "p2ptrain bench snapshot --folder /srv"))
def snapshot(
    megabytes: Annotated[int, typer.Option("--megabytes", min=8, help="Of θ and m.")] = 512,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="The best of them counts.")] = 3,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="On the disk that is meant.", exists=True),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write snapshots of θ and m, and hold that against dd; and apply updates meanwhile."""
    from p2ptrain.testing.bench.snapshot import measure

    _tell(measure(megabytes * 10**6 // 8, rounds, folder), as_json)


@app.command(epilog=examples("p2ptrain bench replay", "p2ptrain bench replay --codec int4 --json"))
def replay(
    elements: Annotated[int, typer.Option("--elements", min=1, help="Parameters.")] = 100_000_000,
    threads: Annotated[int, typer.Option("--threads", min=1, max=64, help="Of both.")] = 2,
    codec: Annotated[str, typer.Option("--codec", help="fp32, fp16, int8, int4.")] = "int8",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="The best of them counts.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Apply updates to θ and m, against memcpy; and weigh the log against a snapshot.

    Takes 13 bytes of memory for each parameter.
    """
    from p2ptrain import kernels
    from p2ptrain.testing.bench.replay import measure

    try:
        chosen = kernels.codec(codec, 256)  # type: ignore[arg-type]  # checked there
    except ValueError as exc:
        raise ConfigError(f"this cannot be measured: {exc}", do="see --help for what can") from exc
    _tell(measure(elements, threads, rounds, chosen), as_json)


@app.command(
    epilog=examples("p2ptrain bench trainer", "p2ptrain bench trainer --against none --json")
)
def trainer(
    layers: Annotated[int, typer.Option("--layers", min=1)] = 4,
    width: Annotated[int, typer.Option("--width", min=64, help="A multiple of 64.")] = 256,
    sequence: Annotated[int, typer.Option("--sequence", min=1, help="Tokens of context.")] = 256,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences a step.")] = 4,
    precision: Annotated[str, typer.Option("--precision", help="fp32, bf16.")] = "bf16",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda.")] = "cpu",
    compile: Annotated[bool, typer.Option("--compile", help="All of them.")] = False,
    steps: Annotated[int, typer.Option("--steps", min=1, help="In a round.")] = 3,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="The best of them counts.")] = 5,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            help="transformers (is downloaded into an environment that is thrown away), or none.",
        ),
    ] = "transformers",
    as_json: JsonOption = False,
) -> None:
    """Train with FSDP2 on one rank, in a plain loop, and with transformers' model, in turns.

    On a CPU seconds are those of one processor.
    """
    from p2ptrain.testing.bench.processes import Failed
    from p2ptrain.testing.bench.trainer import measure, setting

    chosen = setting(layers, width, sequence, batch, precision, device, compile=compile)
    try:
        _tell(measure(chosen, steps, rounds, transformers=against == "transformers"), as_json)
    except Failed as exc:
        raise ConfigError(f"this could not be measured: {exc}", do="--against none") from exc


@app.command(
    epilog=examples(
        "p2ptrain bench utilisation --up-mbit 4",
        "p2ptrain bench utilisation --addresses wan0/10.77.0.1,wan1/10.77.0.2 --json",
    )
)
def utilisation(
    nodes: Annotated[int, typer.Option("--nodes", min=2, max=16)] = 4,
    layers: Annotated[int, typer.Option("--layers", min=1)] = 6,
    width: Annotated[int, typer.Option("--width", min=64, help="A multiple of 64.")] = 192,
    sequence: Annotated[int, typer.Option("--sequence", min=8, help="Tokens of context.")] = 128,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences a step.")] = 4,
    steps: Annotated[int, typer.Option("--steps", min=2, help="H.")] = 48,
    fragments: Annotated[int, typer.Option("--fragments", min=2, help="P, a divisor of H.")] = 4,
    overlap: Annotated[int, typer.Option("--overlap", min=1, help="τ, in inner steps.")] = 10,
    mixing: Annotated[float, typer.Option("--mixing", min=0, help="α.")] = 0.5,
    measured: Annotated[int, typer.Option("--measured", min=1, help="Times H steps.")] = 3,
    up: Annotated[
        float | None, typer.Option("--up-mbit", min=0.01, help="What each node may send.")
    ] = None,
    addresses: Annotated[
        str,
        typer.Option(
            "--addresses",
            metavar="ADDR,…",
            help="Of each node; NAMESPACE/ADDR runs it in that network namespace.",
            show_default="127.0.0.1",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Train with real nodes: the share of time in inner steps, in plain DiLoCo and with fragments.

    Plain DiLoCo has int8, fragments have int4. The line between the hosts is yours to make slow.
    """
    from p2ptrain.testing.bench.processes import Failed
    from p2ptrain.testing.bench.utilisation import Mode, Setting, measure

    limit = "" if up is None else f"{up * 1e3:.0f}kbit"
    try:
        setting = Setting(layers, width, sequence, batch, steps, measured, limit)
        streaming = Mode(fragments, overlap, mixing, "int4", outer_lr=0.4)
        hosts = _hosts(addresses, len(addresses.split(",")) if addresses else nodes)
        _tell(measure(setting, [Mode(), streaming], hosts), as_json)
    except (ValueError, Failed) as exc:
        raise ConfigError(f"this cannot be measured: {exc}", do="see --help for what can") from exc


def _tell(lines: Iterable[Line], as_json: bool) -> None:
    """One line each, as soon as it is known."""
    for line in lines:
        if as_json:
            result_json(line.told())
        else:
            result(str(line))


def lines_of(report: KernelReport) -> Iterator[str]:
    yield (
        f"kernels for {report.variant}; memcpy copies {report.memcpy_gb_per_s:.1f} GB/s; "
        f"{report.elements} elements"
    )
    yield "× memcpy in elements, and in bytes read and written:"
    for name, codec in report.codecs.items():
        yield from _codec_lines(name, codec)
    for name, ratio in report.peers.items():
        if ratio is not None:
            yield f"int8 quantise is {ratio:.2f} times as fast as that of {name}"


def _codec_lines(name: str, codec: CodecReport) -> Iterator[str]:
    yield (
        f"{name}, blocks of {codec.block}, {codec.bytes_per_element:.3f} bytes an element; "
        f"a mean of four is off by {codec.errors['gaussian']:.4f} (Gaussian data), "
        f"{codec.errors['student_t3']:.4f} (Student's t, 3)"
    )
    for kernel, figure in codec.figures.items():
        yield (
            f"  {kernel:20} {figure.ratio:5.2f} {figure.bytes_ratio:5.2f}"
            f"   {figure.gb_per_s:5.1f} GB/s"
        )

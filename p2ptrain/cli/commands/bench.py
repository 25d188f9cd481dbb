"""`p2ptrain bench`: measure this machine, and compare with alternatives in the same run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.commands import bench_state
from p2ptrain.cli.commands.bench_output import hosts_of, numbers, tell
from p2ptrain.cli.output import JsonOption, examples, progress, result
from p2ptrain.errors import ConfigError
from p2ptrain.extras import install

if TYPE_CHECKING:
    from p2ptrain.bench.kernels import CodecReport, KernelReport

app = typer.Typer(
    help="Measure what this machine can do.",
    epilog=examples(
        "p2ptrain bench kernels",
        "p2ptrain bench snapshot --folder /srv",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(bench_state.commands)


@app.command(
    epilog=examples("p2ptrain bench kernels", "p2ptrain bench kernels --variant avx2 --json")
)
def kernels(
    elements: Annotated[int, typer.Option("--elements", min=1, help="Of fp32.")] = 25_000_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="The best of them counts.")] = 5,
    variant: Annotated[
        str, typer.Option("--variant", help="Such as avx2; the best there is otherwise.")
    ] = "",
    block: Annotated[
        int | None,
        typer.Option(
            "--block", min=1, max=4096, help="Elements of int8 and int4 that share a scale."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the kernels beside memcpy and other quantisers, in one thread.

    Takes half a minute and a gigabyte of memory.
    """
    from p2ptrain.bench.kernels import measure

    report = measure(elements, rounds, variant, block)
    if as_json:
        tell(report.lines(), as_json)
    else:
        for line in lines_of(report):
            result(line)
    for name, ratio in report.peers.items():
        if ratio is None:
            progress(f"{name} is not here to compare with: {install(name)}")


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
        help="Where each peer is; NAMESPACE/ADDR runs it in that network namespace.",
        show_default="127.0.0.1",
    ),
]
BadLink = Annotated[
    float | None,
    typer.Option(
        "--bad-link",
        min=0.1,
        help="Measure something else: the best order of a ring and the worst, with one link of so "
        "many Mbit/s.",
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
        str, typer.Option("--elements", help="Of fp32; several sizes with commas.")
    ] = "25000000",
    schedules: Annotated[str, typer.Option("--schedules", help="ring, direct, grid.")] = "ring",
    codecs: Annotated[str, typer.Option("--codecs", help="fp32, fp16, int8, int4.")] = "int8",
    encryption: Annotated[str, typer.Option("--encryption", help="none, tls.")] = "none,tls",
    streams: Annotated[
        str, typer.Option("--streams", help="Connections to a neighbour; several with commas.")
    ] = "1",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Reduces in a round.")] = 5,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="With new processes each.")] = 3,
    bad_link: BadLink = None,
    against: Against = "gloo",
    addresses: Addresses = "",
    as_json: JsonOption = False,
) -> None:
    """Average a vector among processes of this machine, and with other programs to compare.

    Every combination of the options is measured in turn. A time is the slowest peer's.
    """
    from p2ptrain.bench.all_reduce import orders
    from p2ptrain.bench.all_reduce.comparison import measure, settings_of
    from p2ptrain.bench.processes import Host

    try:
        counts, sizes = numbers("--peers", peers), numbers("--elements", elements)
        if bad_link is not None:
            if len(counts) + len(sizes) > 2:
                raise ValueError("with --bad-link one --peers and one --elements are measured")
            found = orders.measure(counts[0], sizes[0], bad_link * 1e6 / 8, rounds)
            return tell(found.lines, as_json)
        settings = settings_of(
            counts,
            sizes,
            schedules.split(","),
            codecs.split(","),
            encryption.split(","),
            numbers("--streams", streams),
            repeats,
        )
        hosts = [Host.parse(each) for each in addresses.split(",")] if addresses else []
        others = [] if against == "none" else against.split(",")
        report = measure(settings, rounds, against=others, hosts=hosts)
    except ValueError as exc:
        raise ConfigError(f"this cannot be measured: {exc}", do="see --help for what can") from exc
    for name, why in report.missing.items():
        progress(f"{name} was not measured: {why}")
    tell(report.lines, as_json)


@app.command(
    epilog=examples("p2ptrain bench trainer", "p2ptrain bench trainer --against none --json")
)
def trainer(
    layers: Annotated[int, typer.Option("--layers", min=1, help="Of the model.")] = 4,
    width: Annotated[int, typer.Option("--width", min=64, help="A multiple of 64.")] = 256,
    sequence: Annotated[int, typer.Option("--sequence", min=1, help="Tokens of context.")] = 256,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences a step.")] = 16,
    precision: Annotated[str, typer.Option("--precision", help="fp32, bf16.")] = "bf16",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda.")] = "cpu",
    compile: Annotated[bool, typer.Option("--compile", help="Compile each contender.")] = False,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Inner steps a round.")] = 3,
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

    In bf16 each of these loops runs under autocast, as most do, and with parameters in bf16, as
    FSDP2 has them. On a CPU, seconds are those that a processor worked.
    """
    from p2ptrain.bench.processes import Failed
    from p2ptrain.bench.trainer import measure, setting
    from p2ptrain.prepare.machine_check import CPU_INFO, multiplies_bf16

    if (device, precision) == ("cpu", "bf16") and not multiplies_bf16(CPU_INFO):
        progress("no bf16 instructions here: expect over half an hour; --precision fp32 is faster")
    chosen = setting(layers, width, sequence, batch, precision, device, compile=compile)
    try:
        tell(measure(chosen, steps, rounds, transformers=against == "transformers"), as_json)
    except Failed as exc:
        raise ConfigError(f"this could not be measured: {exc}", do="--against none") from exc


@app.command(
    epilog=examples(
        "p2ptrain bench utilisation --up-mbit 4",
        "p2ptrain bench utilisation --addresses wan0/10.77.0.1,wan1/10.77.0.2 --json",
    )
)
def utilisation(
    nodes: Annotated[int, typer.Option("--nodes", min=2, max=16, help="How many train.")] = 4,
    layers: Annotated[int, typer.Option("--layers", min=1, help="Of the model.")] = 6,
    width: Annotated[int, typer.Option("--width", min=64, help="A multiple of 64.")] = 192,
    sequence: Annotated[int, typer.Option("--sequence", min=8, help="Tokens of context.")] = 128,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences a step.")] = 4,
    steps: Annotated[int, typer.Option("--steps", min=2, help="H, in inner steps.")] = 48,
    fragments: Annotated[int, typer.Option("--fragments", min=2, help="P, a divisor of H.")] = 4,
    overlap: Annotated[int, typer.Option("--overlap", min=1, help="τ, in inner steps.")] = 10,
    mixing: Annotated[float, typer.Option("--mixing", min=0, help="α.")] = 0.5,
    measured: Annotated[
        int, typer.Option("--measured", min=1, help="Measure so many times H inner steps.")
    ] = 3,
    up: Annotated[
        float | None, typer.Option("--up-mbit", min=0.01, help="What each node may send.")
    ] = None,
    addresses: Annotated[
        str,
        typer.Option(
            "--addresses",
            metavar="ADDR,…",
            help="Where each node is; NAMESPACE/ADDR runs it in that network namespace.",
            show_default="127.0.0.1",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Train with real nodes: the share of time in inner steps, in plain DiLoCo and with fragments.

    Plain DiLoCo has int8, fragments have int4. How slow the line between the hosts is you decide:
    --up-mbit, or --addresses in namespaces with an emulator between them.
    """
    from p2ptrain.bench.processes import Failed
    from p2ptrain.bench.utilisation import Mode, Setting, measure

    limit = "" if up is None else f"{up * 1e3:.0f}kbit"
    try:
        setting = Setting(layers, width, sequence, batch, steps, measured, limit)
        streaming = Mode(fragments, overlap, mixing, "int4", outer_lr=0.4)
        hosts = hosts_of(addresses, len(addresses.split(",")) if addresses else nodes)
        tell(measure(setting, [Mode(), streaming], hosts), as_json)
    except (ValueError, Failed) as exc:
        raise ConfigError(f"this cannot be measured: {exc}", do="see --help for what can") from exc


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

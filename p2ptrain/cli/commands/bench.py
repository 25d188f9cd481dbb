"""`p2ptrain bench`: measure this machine, and compare p2ptrain with other programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.commands import bench_state
from p2ptrain.cli.commands.bench_output import (
    AddressesOption,
    BatchOption,
    EncryptionOption,
    LayersOption,
    RoundsOption,
    WidthOption,
    hosts_of,
    numbers,
    print_lines,
    reported,
)
from p2ptrain.cli.output import JsonOption, examples, progress, result
from p2ptrain.extras import install

if TYPE_CHECKING:
    from p2ptrain.bench.kernels import CodecReport, KernelReport

app = typer.Typer(
    help="Measure what this machine can do.",
    epilog=examples("p2ptrain bench kernels", "p2ptrain bench snapshot --folder /srv"),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(bench_state.commands)


@app.command(
    epilog=examples("p2ptrain bench kernels", "p2ptrain bench kernels --variant avx2 --json")
)
def kernels(
    elements: Annotated[
        int, typer.Option("--elements", min=1, help="Number of fp32 elements in the vector.")
    ] = 25_000_000,
    rounds: RoundsOption = 5,
    variant: Annotated[
        str,
        typer.Option(
            "--variant",
            help="Kernel variant, such as avx2; by default the best that this machine supports.",
        ),
    ] = "",
    block: Annotated[
        int | None,
        typer.Option(
            "--block",
            min=1,
            max=4096,
            help="Number of elements that int8 and int4 quantise with the same scale.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the kernels with memcpy and other quantisers.

    Uses one thread and a gigabyte of memory for half a minute.
    """
    from p2ptrain.bench.kernels import measure

    report = measure(elements, rounds, variant, block)
    if as_json:
        print_lines(report.lines(), as_json)
    else:
        for line in lines_of(report):
            result(line)
    for name, ratio in report.peers.items():
        if ratio is None:
            progress(f"{name} is not installed, so it is not compared: {install(name)}")


Against = Annotated[
    str,
    typer.Option(
        "--against",
        help=(
            "Programs to compare with: gloo, sockets (bare TCP, 16 connections), hivemind "
            "(downloaded into a temporary environment), or none."
        ),
    ),
]
BadLink = Annotated[
    float | None,
    typer.Option(
        "--bad-link",
        min=0.1,
        help=(
            "Measure only the best and the worst order of a ring in which one link has this many "
            "Mbit/s."
        ),
    ),
]


AllreduceStreams = Annotated[
    str,
    typer.Option(
        "--streams", help="Numbers of connections to each neighbour, separated by commas."
    ),
]

AllreduceElements = Annotated[
    str,
    typer.Option("--elements", help="Numbers of fp32 elements in the vector, separated by commas."),
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
    peers: Annotated[
        str, typer.Option("--peers", help="Numbers of peers, separated by commas.")
    ] = "4",
    elements: AllreduceElements = "25000000",
    schedules: Annotated[
        str, typer.Option("--schedules", help="Schedules: ring, direct, grid.")
    ] = "ring",
    codecs: Annotated[
        str, typer.Option("--codecs", help="Codecs: fp32, fp16, int8, int4.")
    ] = "int8",
    encryption: EncryptionOption = "none,tls",
    streams: AllreduceStreams = "1",
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Number of reduces in each round.")
    ] = 5,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Rounds; each starts new processes.")
    ] = 3,
    bad_link: BadLink = None,
    against: Against = "gloo",
    addresses: AddressesOption = "",
    signed: Annotated[
        bool, typer.Option("--signed", help="Also measure peers that sign their sums.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Average a vector among processes, and compare programs.

    The other programs run on this machine too. Every combination of the options is measured in
    turn. Each time is that of the slowest peer.
    """
    from p2ptrain.bench.all_reduce import orders
    from p2ptrain.bench.all_reduce.comparison import measure, settings_of
    from p2ptrain.bench.processes import Host

    with reported(ValueError):
        counts, sizes = numbers("--peers", peers), numbers("--elements", elements)
        if bad_link is not None:
            if len(counts) + len(sizes) > 2:
                raise ValueError("--bad-link needs one value of --peers and one of --elements")
            found = orders.measure(counts[0], sizes[0], bad_link * 1e6 / 8, rounds)
            return print_lines(found.lines, as_json)
        settings = settings_of(
            counts,
            sizes,
            schedules.split(","),
            codecs.split(","),
            encryption.split(","),
            numbers("--streams", streams),
            repeats,
            signed=signed,
        )
        hosts = [Host.parse(each) for each in addresses.split(",")] if addresses else []
        others = [] if against == "none" else against.split(",")
        report = measure(settings, rounds, against=others, hosts=hosts)
    for name, why in report.missing.items():
        progress(f"{name} was not measured: {why}")
    print_lines(report.lines, as_json)


@app.command(
    epilog=examples("p2ptrain bench trainer", "p2ptrain bench trainer --against none --json")
)
def trainer(
    layers: LayersOption = 4,
    width: WidthOption = 256,
    sequence: Annotated[
        int, typer.Option("--sequence", min=1, help="Context length in tokens.")
    ] = 256,
    batch: BatchOption = 16,
    precision: Annotated[
        str, typer.Option("--precision", help="Number format: fp32 or bf16.")
    ] = "bf16",
    device: Annotated[str, typer.Option("--device", help="Device: cpu or cuda.")] = "cpu",
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile each model that is compared.")
    ] = False,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Inner steps in each round.")] = 3,
    rounds: RoundsOption = 5,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            help=(
                "Program to compare with: transformers (downloaded into a temporary "
                "environment), or none."
            ),
        ),
    ] = "transformers",
    as_json: JsonOption = False,
) -> None:
    """Compare training with a plain loop and with transformers.

    One rank trains with FSDP2, alternating with a plain loop and with transformers' model. In bf16,
    these loops run twice: under autocast, as in most programs, and with bf16 parameters, as under
    FSDP2. On a CPU, times are processor time.
    """
    from p2ptrain.bench.processes import ProcessFailed
    from p2ptrain.bench.trainer import measure, setting
    from p2ptrain.prepare.machine_check import CPU_INFO, multiplies_bf16

    if (device, precision) == ("cpu", "bf16") and not multiplies_bf16(CPU_INFO):
        progress(
            "this processor has no bf16 instructions: the benchmark takes over half an hour; "
            "--precision fp32 is faster"
        )
    chosen = setting(layers, width, sequence, batch, precision, device, compile=compile)
    with reported(ProcessFailed, do="try --against none"):
        print_lines(measure(chosen, steps, rounds, transformers=against == "transformers"), as_json)


@app.command(
    epilog=examples(
        "p2ptrain bench utilisation --up-mbit 4",
        "p2ptrain bench utilisation --addresses wan0/10.77.0.1,wan1/10.77.0.2 --json",
    )
)
def utilisation(
    nodes: Annotated[
        int, typer.Option("--nodes", min=2, max=16, help="Number of nodes that train.")
    ] = 4,
    layers: LayersOption = 6,
    width: WidthOption = 192,
    sequence: Annotated[
        int, typer.Option("--sequence", min=8, help="Context length in tokens.")
    ] = 128,
    batch: BatchOption = 4,
    steps: Annotated[
        int,
        typer.Option(
            "--steps", min=2, help="Inner steps between two exchanges of one parameter (H)."
        ),
    ] = 48,
    fragments: Annotated[
        int, typer.Option("--fragments", min=2, help="Number of fragments (P), a divisor of H.")
    ] = 4,
    overlap: Annotated[
        int, typer.Option("--overlap", min=1, help="Inner steps trained during an exchange (τ).")
    ] = 10,
    mixing: Annotated[
        float, typer.Option("--mixing", min=0, help="Weight of local changes at a merge (α).")
    ] = 0.5,
    measured: Annotated[
        int,
        typer.Option(
            "--measured", min=1, help="Length of the measurement, as a multiple of H inner steps."
        ),
    ] = 3,
    up: Annotated[
        float | None,
        typer.Option("--up-mbit", min=0.01, help="Upload limit of each node, in Mbit/s."),
    ] = None,
    addresses: AddressesOption = "",
    as_json: JsonOption = False,
) -> None:
    """Measure the share of time that real nodes spend training.

    Compares plain DiLoCo (int8) with Streaming DiLoCo (int4). To limit the speed of connections,
    use --up-mbit, or --addresses with network namespaces behind an emulated link.
    """
    from p2ptrain.bench.processes import ProcessFailed
    from p2ptrain.bench.utilisation import SyncMode, UtilisationSetting, measure

    limit = "" if up is None else f"{up * 1e3:.0f}kbit"
    with reported(ValueError, ProcessFailed):
        setting = UtilisationSetting(layers, width, sequence, batch, steps, measured, limit)
        streaming = SyncMode(fragments, overlap, mixing, "int4", outer_lr=0.4)
        hosts = hosts_of(addresses, len(addresses.split(",")) if addresses else nodes)
        print_lines(measure(setting, [SyncMode(), streaming], hosts), as_json)


def lines_of(report: KernelReport) -> Iterator[str]:
    yield (
        f"kernels for {report.variant}; memcpy copies {report.memcpy_gb_per_s:.1f} GB/s; "
        f"{report.elements} elements"
    )
    yield "speed relative to memcpy: first by elements, then by bytes read and written:"
    for name, codec in report.codecs.items():
        yield from _codec_lines(name, codec)
    for name, ratio in report.peers.items():
        if ratio is not None:
            yield f"int8 quantise is {ratio:.2f} times as fast as that of {name}"


def _codec_lines(name: str, codec: CodecReport) -> Iterator[str]:
    yield (
        f"{name}, blocks of {codec.block}, {codec.bytes_per_element:.3f} bytes per element; "
        f"the mean of four vectors has an error of {codec.errors['gaussian']:.4f} (Gaussian "
        f"data), {codec.errors['student_t3']:.4f} (Student's t, 3)"
    )
    for kernel, figure in codec.figures.items():
        yield (
            f"  {kernel:20} {figure.ratio:5.2f} {figure.bytes_ratio:5.2f}"
            f"   {figure.gb_per_s:5.1f} GB/s"
        )

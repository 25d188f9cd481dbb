"""Code that several bench commands use: their options, hosts, errors, and output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.output import result, result_json
from p2ptrain.errors import ConfigError

if TYPE_CHECKING:
    from p2ptrain.bench.lines import FigureLine
    from p2ptrain.bench.processes import Host


RoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, help="Measured rounds; the best one is reported.")
]
LayersOption = Annotated[int, typer.Option("--layers", min=1, help="Layers of the model.")]
WidthOption = Annotated[
    int, typer.Option("--width", min=64, help="Width of the model, a multiple of 64.")
]
BatchOption = Annotated[int, typer.Option("--batch", min=1, help="Sequences in each inner step.")]
EncryptionOption = Annotated[str, typer.Option("--encryption", help="Encryption: none, tls.")]
AddressesOption = Annotated[
    str,
    typer.Option(
        "--addresses",
        metavar="ADDR,…",
        help="Address of each peer; NAMESPACE/ADDR runs the peer in that network namespace.",
        show_default="127.0.0.1",
    ),
]


@contextmanager
def reported(
    *kinds: type[Exception], do: str = "correct the option; --help describes it"
) -> Iterator[None]:
    """Report an exception of these kinds in the `with` block as a ConfigError with this advice."""
    try:
        yield
    except kinds as exc:
        raise ConfigError(f"the measurement cannot run: {exc}", do=do) from exc


def hosts_of(addresses: str, count: int) -> list[Host]:
    """Return the hosts in `addresses`; if it is empty, return this machine `count` times. Raises
    ValueError if there are not `count` addresses, or if one of them is invalid.
    """
    from p2ptrain.bench.processes import Host

    if not addresses:
        return [Host()] * count
    hosts = [Host.parse(each) for each in addresses.split(",")]
    if len(hosts) != count:
        raise ValueError(f"{count} peers need {count} addresses; you gave {len(hosts)}")
    return hosts


def numbers(option: str, text: str) -> list[int]:
    """Parse whole numbers, separated by commas. Raises ValueError."""
    if not all(each.strip().isdecimal() for each in text.split(",")):
        raise ValueError(
            f"{option} {text[:80]!r} is not a list of whole numbers separated by commas"
        )
    return [int(each) for each in text.split(",")]


def print_lines(lines: Iterable[FigureLine], as_json: bool) -> None:
    """Print each line as soon as it is known."""
    for line in lines:
        if as_json:
            result_json(line.as_map())
        else:
            result(str(line))

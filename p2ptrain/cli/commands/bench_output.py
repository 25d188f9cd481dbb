"""Common parts of the bench commands: hosts of processes, and output of lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from p2ptrain.cli.output import result, result_json

if TYPE_CHECKING:
    from p2ptrain.bench.lines import FigureLine
    from p2ptrain.bench.processes import Host


def hosts_of(addresses: str, count: int) -> list[Host]:
    """Parse the hosts. Raises ValueError if their number is wrong or one is invalid."""
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

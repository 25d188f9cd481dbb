"""Draw two charts of `bench allreduce --json`: time against the number of peers, and against size.

Usage: python -m p2ptrain.bench.all_reduce.plot JSON… > allreduce.svg
With --table, print the same points as a table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.bench.charts import Chart, page, short
from p2ptrain.bench.lines import CORES, LOAD


@dataclass(frozen=True, slots=True)
class Point:
    what: str
    peers: int
    elements: int
    seconds: float


def read_points(files: Sequence[Path]) -> tuple[list[Point], str]:
    """Return the points of all files, and a description of the machine."""
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    points = [
        Point(each["what"], each["peers"], each["elements"], each["value"])
        for each in lines
        if "what" in each
    ]
    cores = max(each["value"] for each in lines if each["measure"] == CORES)
    loads = [each["value"] for each in lines if each["measure"].startswith(LOAD)]
    return points, f"{cores} cores, load {min(loads):.1f} to {max(loads):.1f}"


def picture(points: Sequence[Point], machine: str) -> str:
    """Return both charts side by side as SVG."""
    size = _usual([point.elements for point in points])
    peers = _usual([point.peers for point in points])
    over_peers = [(p.what, p.peers, p.seconds) for p in points if p.elements == size]
    over_size = [(p.what, p.elements, p.seconds) for p in points if p.peers == peers]
    charts = [
        _chart(f"seconds for {size:,} fp32", "peers", over_peers),
        _chart(f"seconds for {peers} peers", "fp32 elements", over_size),
    ]
    return page(charts, f"Medians, one machine: {machine}")


def _usual(values: Sequence[int]) -> int:
    """Return the most frequent value, which one of the charts keeps fixed."""
    return max(sorted(set(values)), key=values.count)


def _chart(title: str, across: str, points: Sequence[tuple[str, int, float]]) -> Chart:
    lines: dict[str, dict[int, float]] = {}
    for what, value, seconds in points:
        lines.setdefault(what, {})[value] = seconds
    drawn = {what: sorted(line.items()) for what, line in lines.items()}
    return Chart(title, across, drawn, marks=sorted({value for _, value, _ in points}))


def table(points: Sequence[Point], machine: str) -> str:
    """Return a markdown table with a column per method and a row per number of peers and size."""
    names = sorted({point.what for point in points})
    found = {(each.peers, each.elements, each.what): each.seconds for each in points}
    rows = sorted({(point.peers, point.elements) for point in points})
    lines = [
        f"Medians of seconds, one machine: {machine}.",
        "",
        f"| peers | fp32 | {' | '.join(names)} |",
        "|" + "---|" * (2 + len(names)),
    ]
    for peers, elements in rows:
        cells = [found.get((peers, elements, name)) for name in names]
        shown = " | ".join("" if each is None else f"{each:.3f}" for each in cells)
        lines.append(f"| {peers} | {short(elements)} | {shown} |")
    return "\n".join([*lines, ""])


def main(*arguments: str) -> None:
    make = table if "--table" in arguments else picture
    files = [Path(each) for each in arguments if each != "--table"]
    sys.stdout.write(make(*read_points(files)))


if __name__ == "__main__":
    main(*sys.argv[1:])

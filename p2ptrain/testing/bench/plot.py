"""Two plots of `bench allreduce --json`: time against the number of peers, and against the size.

One picture with both, in SVG written by hand: a plot is not worth a dependency. Both axes are
logarithmic, so that a factor looks the same everywhere. Also the table of the same points.

Usage: python -m p2ptrain.testing.bench.plot JSON… > allreduce.svg, or with --table for the table.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 460, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 48
LEGEND = 96
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#555555", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b")
"""Okabe and Ito's, which the colour-blind tell apart."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")


@dataclass(frozen=True, slots=True)
class Point:
    what: str
    peers: int
    elements: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis from `low` to `high`, drawn from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        span = math.log(self.high / self.low)
        return self.start + (self.end - self.start) * math.log(value / self.low) / span


def read_points(files: Sequence[Path]) -> tuple[list[Point], str]:
    """The points of all files, and on what machine they were measured, in words."""
    points, loads, cores = [], [], 0
    for file in files:
        report = json.loads(file.read_text())
        cores = max(cores, int(report["cores"]))
        loads += [float(load) for load in report["load"]]
        points += [
            Point(each["what"], each["peers"], each["elements"], each["seconds"])
            for each in report["points"]
        ]
    return points, f"{cores} cores, load {min(loads):.1f} to {max(loads):.1f}"


def picture(points: Sequence[Point], machine: str) -> str:
    """Both plots side by side, as SVG."""
    names = sorted({point.what for point in points})
    size = _usual([point.elements for point in points])
    peers = _usual([point.peers for point in points])
    against_peers = {(point.what, point.peers): point.seconds for point in points
                     if point.elements == size}  # fmt: skip
    against_size = {(point.what, point.elements): point.seconds for point in points
                    if point.peers == peers}  # fmt: skip
    rows = -(-len(names) // 4)
    height = HEIGHT + LEGEND // 4 * rows + 28
    body = [
        *_plot(0, f"{size:,} fp32", "peers", against_peers, names),
        *_plot(WIDTH, f"{peers} peers", "fp32 elements", against_size, names),
        *_legend(names),
        _text(LEFT, height - 8, f"Medians, one machine: {machine}", size=11),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{2 * WIDTH}" height="{height}" fill="white"/>'
    )
    return "\n".join([head, *body, "</svg>\n"])


def _usual(values: Sequence[int]) -> int:
    """The value that most points have: what one of the plots holds fixed."""
    return max(sorted(set(values)), key=values.count)


def _plot(
    offset: int,
    title: str,
    across: str,
    seconds: Mapping[tuple[str, int], float],
    names: Sequence[str],
) -> Iterator[str]:
    values = sorted({value for _, value in seconds})
    x = Axis(min(values), max(max(values), min(values) * 2), offset + LEFT, offset + WIDTH - RIGHT)
    low = 10 ** math.floor(math.log10(min(seconds.values())))
    high = 10 ** math.ceil(math.log10(max(seconds.values()) * 1.001))
    y = Axis(low, high, HEIGHT - BOTTOM, TOP)
    yield _text(offset + LEFT, TOP - 14, f"seconds for {title}", weight="bold")
    yield from _frame(x, y, values, across)
    for number, name in enumerate(names):
        line = [(x.at(value), y.at(seconds[name, value])) for value in values
                if (name, value) in seconds]  # fmt: skip
        yield from _line(line, number)


def _frame(x: Axis, y: Axis, values: Sequence[int], across: str) -> Iterator[str]:
    for value in values:
        yield _rule(x.at(value), y.start, x.at(value), y.end)
        yield _text(x.at(value), y.start + 16, _short(value), anchor="middle")
    decades = round(math.log10(y.high / y.low))
    for decade in range(decades + 1):
        for step in (1, 2, 5) if decade < decades else (1,):
            value = y.low * 10**decade * step
            yield _rule(x.start, y.at(value), x.end, y.at(value))
            yield _text(x.start - 6, y.at(value) + 4, f"{value:g}", anchor="end")
    yield _text((x.start + x.end) / 2, y.start + 36, across, anchor="middle")


def _line(line: Sequence[tuple[float, float]], number: int) -> Iterator[str]:
    colour, dash = _look(number)
    path = " ".join(f"{across:.1f},{up:.1f}" for across, up in line)
    yield (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{dash}"/>'
    )
    for across, up in line:
        yield f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{colour}"/>'


def _legend(names: Sequence[str]) -> Iterator[str]:
    for number, name in enumerate(names):
        left, top = LEFT + number % 4 * 215, HEIGHT + 10 + number // 4 * LEGEND // 4
        colour, dash = _look(number)
        yield (
            f'<line x1="{left}" y1="{top}" x2="{left + 28}" y2="{top}" stroke="{colour}" '
            f'stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        yield _text(left + 34, top + 4, name)


def _look(number: int) -> tuple[str, str]:
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal", size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'font-size="{size}">{escape(words)}</text>'
    )


def _short(value: int) -> str:
    for unit, name in ((10**6, "M"), (10**3, "k")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return str(value)


def table(points: Sequence[Point], machine: str) -> str:
    """The same points as a markdown table: a row for each vector, a column for each way."""
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
        lines.append(f"| {peers} | {_short(elements)} | {shown} |")
    return "\n".join([*lines, ""])


def main(*arguments: str) -> None:
    make = table if "--table" in arguments else picture
    files = [Path(each) for each in arguments if each != "--table"]
    sys.stdout.write(make(*read_points(files)))


if __name__ == "__main__":
    main(*sys.argv[1:])

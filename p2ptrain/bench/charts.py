"""Draw charts of measurements side by side in one SVG, without a plotting library.

This module does not know what was measured. On a logarithmic axis, equal factors have equal
lengths; on a linear axis, equal differences do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH, HEIGHT = 460, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 48
LEGEND_HEIGHT, LEGEND_COLUMNS = 24, 4
FOOT = 28
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#555555", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b")
"""Colours of lines. Most of them are from Okabe and Ito's palette, which colour-blind people can
tell apart."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")
TICKS = 6
"""Approximate number of labels on a linear axis."""

Scale = Literal["log", "linear"]
Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines by name, each a list of (x, y) with rising x. There must be at least one point.

    `marks` are the values to label on the horizontal axis. Without marks, the axis gets labels at
    round values (`Axis.ticks`). If `from_zero` is set, a linear vertical axis includes 0.
    """

    title: str
    across: str
    lines: Mapping[str, Line]
    scale_across: Scale = "log"
    scale_up: Scale = "log"
    marks: Sequence[float] = ()
    from_zero: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high`, drawn from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: float
    end: float
    scale: Scale

    def at(self, value: float) -> float:
        if self.scale == "log":
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * share

    def ticks(self) -> list[float]:
        if self.scale == "linear":
            step = _round_step((self.high - self.low) / TICKS)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            return [number * step for number in range(first, last + 1)]
        decades = round(math.log10(self.high / self.low))
        steps = (1, 2, 5) if decades <= 3 else (1,)
        found = [self.low * 10**decade * step for decade in range(decades) for step in steps]
        return [*found, self.high]


def page(charts: Sequence[Chart], note: str) -> str:
    """Return an SVG with all charts from left to right, a legend, and `note` below. Lines with the
    same name look the same in all charts."""
    names = sorted({name for chart in charts for name in chart.lines})
    rows = -(-len(names) // LEGEND_COLUMNS)
    height = HEIGHT + LEGEND_HEIGHT * rows + FOOT
    width = WIDTH * len(charts)
    body = [part for number, chart in enumerate(charts) for part in _draw(chart, number, names)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>'
    )
    foot = _text(LEFT, height - 8, note, size=11)
    return "\n".join([head, *body, *_legend(names, width), foot, "</svg>\n"])


def short(value: float) -> str:
    """Return `value` as a label for an axis: 25 M, 10 k, 0.5."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value:g}"


def _draw(chart: Chart, number: int, names: Sequence[str]) -> Iterator[str]:
    offset = number * WIDTH
    points = [point for line in chart.lines.values() for point in line]
    low, high = _span([across for across, _ in points], chart.scale_across, decades=False)
    x = Axis(low, high, offset + LEFT, offset + WIDTH - RIGHT, chart.scale_across)
    zero = [0.0] if chart.from_zero else []
    low, high = _span([up for _, up in points] + zero, chart.scale_up, decades=True)
    y = Axis(low, high, HEIGHT - BOTTOM, TOP, chart.scale_up)
    yield _text(offset + LEFT, TOP - 14, chart.title, weight="bold")
    yield from _frame(chart, x, y)
    for name, line in chart.lines.items():
        yield from _line([(x.at(across), y.at(up)) for across, up in line], names.index(name))


def _span(values: Sequence[float], scale: Scale, *, decades: bool) -> tuple[float, float]:
    """Return the range of an axis that covers all values. With `decades`, a logarithmic axis ends
    at whole decades, and a linear axis gets a margin."""
    low, high = min(values), max(values)
    if scale == "linear":
        margin = (high - low or abs(high) or 1.0) * 0.04
        return (low - margin, high + margin) if decades else (low, high if high > low else low + 1)
    if not decades:
        return low, max(high, low * 2)
    return 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.001))


def _round_step(least: float) -> float:
    decade = 10.0 ** math.floor(math.log10(least))
    return next(step * decade for step in (1, 2, 5, 10) if step * decade >= least * 0.999)


def _frame(chart: Chart, x: Axis, y: Axis) -> Iterator[str]:
    for value in chart.marks or x.ticks():
        yield _rule(x.at(value), y.start, x.at(value), y.end)
        yield _text(x.at(value), y.start + 16, short(value), anchor="middle")
    for value in y.ticks():
        yield _rule(x.start, y.at(value), x.end, y.at(value))
        yield _text(x.start - 6, y.at(value) + 4, f"{value:g}", anchor="end")
    yield _text((x.start + x.end) / 2, y.start + 36, chart.across, anchor="middle")


def _line(points: Line, number: int) -> Iterator[str]:
    colour, dash = _look(number)
    path = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
    yield (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{dash}"/>'
    )
    for across, up in points:
        yield f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{colour}"/>'


def _legend(names: Sequence[str], width: int) -> Iterator[str]:
    column_width = (width - LEFT) / LEGEND_COLUMNS
    for number, name in enumerate(names):
        left = LEFT + number % LEGEND_COLUMNS * column_width
        top = HEIGHT + 10 + number // LEGEND_COLUMNS * LEGEND_HEIGHT
        colour, dash = _look(number)
        yield (
            f'<line x1="{left:g}" y1="{top}" x2="{left + 28:g}" y2="{top}" stroke="{colour}" '
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

"""Curves as SVG, written by hand: a plot is not worth a dependency.

The first fifth is left out: all curves fall steeply there, and what they differ by would vanish.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 52
LEGEND_ROW = 20
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#555555", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b")
"""Okabe and Ito's, which the colour-blind tell apart."""
SHOWN_FROM = 0.2
TICKS = 6


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`, drawn from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / max(self.high - self.low, 1e-9)
        return self.start + (self.end - self.start) * share

    def ticks(self) -> list[float]:
        return [self.low + (self.high - self.low) * tick / TICKS for tick in range(TICKS + 1)]


def drawing(title: str, across: str, lines: Sequence[Line]) -> str:
    """All lines in one picture."""
    last = max(x for line in lines for x, _ in line.points)
    shown = [
        Line(line.name, tuple(point for point in line.points if point[0] >= SHOWN_FROM * last))
        for line in lines
    ]
    values = [y for line in shown for _, y in line.points]
    x = Axis(SHOWN_FROM * last, last, LEFT, WIDTH - RIGHT)
    y = Axis(min(values), max(values), HEIGHT - BOTTOM, TOP)
    height = HEIGHT + LEGEND_ROW * -(-len(lines) // 3) + 8
    body = [
        _text(LEFT, TOP - 14, title, weight="bold"),
        *_frame(x, y, across),
        *(part for number, line in enumerate(shown) for part in _line(x, y, number, line)),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    )
    return "\n".join([head, *body, "</svg>\n"])


def _frame(x: Axis, y: Axis, across: str) -> Iterator[str]:
    for value in x.ticks():
        yield _rule(x.at(value), y.start, x.at(value), y.end)
        yield _text(x.at(value), y.start + 16, f"{value:.0f}", anchor="middle")
    for value in y.ticks():
        yield _rule(x.start, y.at(value), x.end, y.at(value))
        yield _text(x.start - 6, y.at(value) + 4, f"{value:.3f}", anchor="end")
    yield _text((x.start + x.end) / 2, y.start + 36, across, anchor="middle")


def _line(x: Axis, y: Axis, number: int, line: Line) -> Iterator[str]:
    colour = COLOURS[number % len(COLOURS)]
    dash = "" if number < len(COLOURS) else "5 3"
    path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in line.points)
    style = f'stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}"'
    yield f'<polyline points="{path}" fill="none" {style}/>'
    left, top = LEFT + number % 3 * 230, HEIGHT + number // 3 * LEGEND_ROW
    yield f'<line x1="{left}" y1="{top}" x2="{left + 28}" y2="{top}" {style}/>'
    yield _text(left + 34, top + 4, line.name)


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )

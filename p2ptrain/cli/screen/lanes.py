"""Draw the last outer steps of a peer as a lane of cells, and a loss as a sparkline.

Each outer step takes the same number of cells. The cells of a step show how the peer divided its
time, as the peer reported it: a report can be wrong, but it cannot change another peer's lane.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2ptrain.observe.series import PeerStepRow

TRAIN, WAIT, EXCHANGE, PART, ABSENT = "▓", "░", "⇄", "▪", "·"
LEGEND = f"{TRAIN} trains  {WAIT} waits  {EXCHANGE} exchanges  {PART} took part  {ABSENT} did not"

BARS = "▁▂▃▄▅▆▇█"

IN_ASCII = str.maketrans(
    f"{TRAIN}{WAIT}{EXCHANGE}{PART}{ABSENT}{BARS}●◐○…→↑↓", "#.=+-_.,-~+*#*+o~>^v"
)
"""Replacements on a terminal that does not use UTF-8."""


def lane(rows: Sequence[PeerStepRow | None], cells_each: int) -> str:
    """Return the cells of one peer for consecutive outer steps. None is a step without a row."""
    return "".join(_step(row, cells_each) for row in rows)


def _step(row: PeerStepRow | None, width: int) -> str:
    if row is None:
        return " " * width
    parts = (
        (TRAIN, row.train_ms or 0),
        (WAIT, (row.data_wait_ms or 0) + (row.wait_ms or 0)),
        (EXCHANGE, (row.exchange_ms or 0) + (row.fetch_ms or 0) + (row.apply_ms or 0)),
    )
    total = sum(size for _, size in parts)
    if not total:
        return (PART if row.tokens else ABSENT) * width
    cells, used, seen = "", 0, 0
    for letter, size in parts:
        # Rounding the running sum keeps the sum of the cells exact.
        seen += size
        end = round(width * seen / total)
        cells, used = cells + letter * (end - used), end
    return cells


def sparkline(values: Sequence[float | None], width: int, height: int = 1) -> list[str]:
    """Return `height` lines of at most `width` bars, each the mean of its share of `values`. A bar
    without a value is empty. The lowest bar is the smallest value."""
    size = max(1, -(-len(values) // max(1, width)))
    means = [_mean(values[start : start + size]) for start in range(0, len(values), size)]
    known = [mean for mean in means if mean is not None]
    if not known or width < 1:
        return [""] * height
    low, span = min(known), (max(known) - min(known)) or 1.0
    # Even the smallest value has a bar, so a gap is a missing value.
    eighths = [
        0 if mean is None else 1 + round((len(BARS) * height - 1) * (mean - low) / span)
        for mean in means
    ]
    return [
        "".join(_bar(count - len(BARS) * below) for count in eighths)
        for below in range(height - 1, -1, -1)
    ]


def _bar(eighths: int) -> str:
    return BARS[min(eighths, len(BARS)) - 1] if eighths > 0 else " "


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

"""SVG plots of the comparisons: their loss curves, and the gap to ordinary training."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from p2ptrain.bench.charts import Chart, page
from scripts.research.learning.compared import by_arm, losses_of, ratios
from scripts.research.learning.record import Record

SHOWN_FROM = (0.25, 0.75)
"""Shares of the run at which the two charts begin. All curves fall steeply in the first quarter,
which would hide their differences. The second chart shows the end, which matters most."""


def picture(comparison: str, records: Sequence[Record]) -> str:
    """Return an SVG plot of the loss of θ over inner steps: for each arm the mean of its seeds."""
    curves = {f"{name} ({len(found)})": _mean(found) for name, found in by_arm(records).items()}
    charts = []
    for share in SHOWN_FROM:
        lines = {name: [p for p in line if p[0] >= share * line[-1][0]]
                 for name, line in curves.items()}  # fmt: skip
        title = f"{comparison}: loss of θ, nats"
        charts.append(Chart(title, "inner steps", lines, "linear", "linear"))
    return page(charts, "Means over seeds; the numbers of seeds are in brackets.")


def _mean(records: Sequence[Record]) -> list[tuple[float, float]]:
    """Return the mean curve over the steps that all seeds have."""
    curves = [{step: loss for step, loss, _ in each.curve} for each in records]
    steps = sorted(set(curves[0]).intersection(*curves))
    return [(float(step), statistics.fmean(curve[step] for curve in curves)) for step in steps]


GAPS: Mapping[str, Mapping[float, tuple[str, str]]] = {
    "outer steps of two peers": {
        106.0: ("diloco-2", "dp"),
        212.0: ("diloco-2-h6", "dp"),
    },
    "outer steps of four peers": {
        53.0: ("diloco-4-h24", "dp"),
        106.0: ("diloco-4", "dp"),
        212.0: ("diloco-4-h6", "dp"),
    },
    "sequences per step of four peers": {
        32.0: ("diloco-4", "dp"),
        64.0: ("diloco-4-wide", "dp-wide"),
    },
    "peers, from initial weights": {
        2.0: ("scratch-diloco-2", "scratch-dp"),
        4.0: ("scratch-diloco-4", "scratch-dp"),
    },
    "peers": {2.0: ("diloco-2", "dp"), 4.0: ("diloco-4", "dp"), 8.0: ("diloco-8", "dp")},
}
"""For each plot of the gap: its x axis, and for each x value the arm and its reference."""


def picture_of_gaps(records: Sequence[Record]) -> str | None:
    """Return an SVG plot of losses ÷ those of ordinary training, for each seed and their mean.

    Return None if no line has two points yet.
    """
    losses = {name: losses_of(found) for name, found in by_arm(records).items()}
    charts = []
    for across, places in GAPS.items():
        lines: dict[str, list[tuple[float, float]]] = {}
        for place, (arm, reference) in places.items():
            of_both = losses.get(arm, {}).keys() & losses.get(reference, {}).keys()
            for seed in sorted(of_both):
                ratio = losses[arm][seed] / losses[reference][seed]
                lines.setdefault(f"seed {seed}", []).append((place, ratio))
            if of_both:
                mean = statistics.fmean(ratios(losses[arm], losses[reference]))
                lines.setdefault("mean", []).append((place, mean))
        if any(len(line) > 1 for line in lines.values()):
            marks = tuple(places)
            charts.append(Chart("loss ÷ ordinary training", across, lines, "log", "linear", marks))
    return page(charts, "Each seed, and the mean over the available seeds.") if charts else None

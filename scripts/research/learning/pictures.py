"""Plots of the comparisons as SVG: the curves of each, and the gap to ordinary training."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from p2ptrain.bench.charts import Chart, page
from scripts.research.learning.compared import by_arm, losses_of, ratios
from scripts.research.learning.record import Record

SHOWN_FROM = (0.25, 0.75)
"""All curves fall steeply in the first quarter; what they differ by would vanish beside that. And
the end once more, since it is what counts."""


def picture(comparison: str, records: Sequence[Record]) -> str:
    """The loss of θ over inner steps, by arm, the mean of the seeds, as SVG."""
    curves = {f"{name} ({len(found)})": _mean(found) for name, found in by_arm(records).items()}
    charts = []
    for share in SHOWN_FROM:
        lines = {name: [p for p in line if p[0] >= share * line[-1][0]]
                 for name, line in curves.items()}  # fmt: skip
        title = f"{comparison}: loss of θ, nats"
        charts.append(Chart(title, "inner steps", lines, "linear", "linear"))
    return page(charts, "Means of as many seeds as stand in brackets.")


def _mean(records: Sequence[Record]) -> list[tuple[float, float]]:
    """Of the steps that all seeds have."""
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
    "sequences a step of four peers": {
        32.0: ("diloco-4", "dp"),
        64.0: ("diloco-4-wide", "dp-wide"),
    },
    "peers, from first weights": {
        2.0: ("scratch-diloco-2", "scratch-dp"),
        4.0: ("scratch-diloco-4", "scratch-dp"),
    },
    "peers": {2.0: ("diloco-2", "dp"), 4.0: ("diloco-4", "dp"), 8.0: ("diloco-8", "dp")},
}
"""Over what the gap is drawn: where an arm stands, and what it is divided by."""


def picture_of_gaps(records: Sequence[Record]) -> str | None:
    """Loss ÷ that of ordinary training: each seed, and their mean. None while nothing is a line."""
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
    return page(charts, "Each seed by itself, and the mean of those there are.") if charts else None

"""Tables of what was measured, with ties called ties, and a plot of each comparison's curves.

Arms of equal seed have equal first weights and equal tokens in equal order. So an arm is compared
with its reference seed by seed: the mean of the differences, and their standard deviation; a mean
of less than two of these is a tie. One seed alone shows a difference and proves none. Ratios are
shown of both kinds of held-out text; verdicts and what is asked for are of the one that is drawn
from all documents.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from p2ptrain.testing.charts import Chart, page
from p2ptrain.testing.learning.trial import Record

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
"""`scripts/compare --collect` writes what stands between these lines of the page."""


@dataclass(frozen=True, slots=True)
class Table:
    """`asked` is what is hoped for of an arm, in the words of its column."""

    title: str
    reference: str
    arms: tuple[str, ...]
    asked: Mapping[str, str] = field(default_factory=dict)


CHURN = ("churn-fresh", "churn-warmup", "churn-donor")

TABLES = (
    Table(
        "Peers",
        "dp",
        ("diloco-2", "diloco-4", "diloco-8", "mean-4", "alone"),
        {"diloco-2": "÷ ≤ 1.02", "diloco-4": "÷ ≤ 1.05"},
    ),
    Table(
        "Codecs, four peers",
        "diloco-4",
        ("fp16", "int8", "int4", "int4-feedback"),
        {"int8": "− ≤ 0.002", "int4": "− ≤ 0.005", "int4-feedback": "− ≤ 0.005"},
    ),
    Table(
        "Modes, four peers, 102 outer steps of 20",
        "plain-h20",
        ("streaming-1", "streaming-5", "async", "eager", "rda"),
        {"streaming-1": "÷ ≤ 1.005"},
    ),
    Table("One of four at a quarter of the speed", "slow-equally", ("slow-by-tokens",)),
    Table(
        "Churn against four that stay, and contribute a third more",
        "diloco-4",
        CHURN,
        dict.fromkeys(CHURN, "÷ ≤ 1.01"),
    ),
    Table("Churn against three that stay", "three-that-stay", CHURN),
    Table(
        "The gap over the number of outer steps: H = 6, 12 and 24 are 212, 106 and 53",
        "dp",
        ("diloco-4-h6", "diloco-4", "diloco-4-h24"),
        {"diloco-4-h6": "÷ ≤ 1.05"},
    ),
    Table("Twice the batch", "dp-wide", ("diloco-4-wide",)),
)

Losses = dict[int, float]
"""By seed."""


def by_arm(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda each: (each.arm, each.seed)):
        found.setdefault(record.arm, []).append(record)
    return found


def tables(records: Sequence[Record]) -> str:
    """All tables, and the trials by which the rates were chosen, in markdown."""
    found = _with_plain_means(by_arm(records))
    parts = [_texts(records), *(_table(table, found) for table in TABLES)]
    return "\n\n".join([*parts, _rises(found), _trials(found)]) + "\n"


def _with_plain_means(found: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """Where the tuned outer optimizer is none, four peers are the floor of plain averaging, too."""
    four = [each for each in found.get("diloco-4", ()) if _averages_alone(each)]
    return {"mean-4": four, **found} if four else found


def _averages_alone(record: Record) -> bool:
    return bool(record.settings["outer_lr"] == 1 and record.settings["momentum"] == 0)


def _texts(records: Sequence[Record]) -> str:
    """Losses on different texts are not to be compared: say so if there are any. Trials have a text
    of their own, and are compared among themselves.
    """
    texts: dict[str, set[str]] = {}
    for each in records:
        asked_for = json.dumps(each.settings["text"], sort_keys=True)
        texts.setdefault(asked_for, set()).add(each.text)
    for found in texts.values():
        if len(found) > 1:
            return f"**Not comparable:** arms were trained on different texts: {sorted(found)}."
    names = ", ".join(sorted(name for found in texts.values() for name in found))
    return f"{len(records)} arms and seeds" + (f"; texts {names}." if names else ".")


def _table(table: Table, found: Mapping[str, list[Record]]) -> str:
    of = table.reference
    rows = [
        f"### {table.title}",
        "",
        f"| arm | loss, nats | seeds | − {of} | ÷ {of} | | ÷ {of}, strangers | asked for |",
        "|---|---|---|---|---|---|---|---|",
    ]
    reference = found.get(of, [])
    for name in (of, *table.arms):
        cells = _cells(found.get(name, []), [] if name == of else reference)
        rows.append(f"| {name} | {' | '.join(cells)} | {table.asked.get(name, '')} |")
    return "\n".join(rows)


def _cells(records: Sequence[Record], reference: Sequence[Record]) -> tuple[str, ...]:
    """Loss, seeds, difference, ratio, verdict, ratio on strangers."""
    losses, others = _losses(records), _losses(reference)
    diverged = len(records) - len(losses)
    if not losses:
        return (f"{diverged} diverged" if diverged else "not measured yet", "0", "", "", "", "")
    seeds = f"{len(losses)}" + (f"; {diverged} more diverged" if diverged else "")
    compared = (*_against(losses, others), _ratio(_strange(records), _strange(reference)))
    return (_spread(list(losses.values())), seeds, *compared)


def _losses(records: Iterable[Record]) -> Losses:
    return {each.seed: each.loss for each in records if each.loss is not None}


def _strange(records: Iterable[Record]) -> Losses:
    return {each.seed: each.strangers_loss for each in records if each.strangers_loss is not None}


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.4f}"
    return f"{mean} ± {statistics.stdev(values):.4f}" if len(values) > 1 else mean


def _against(losses: Losses, reference: Losses) -> tuple[str, str, str]:
    """The cells that compare an arm with its reference, over the seeds that both have."""
    seeds = sorted(losses.keys() & reference.keys())
    if not seeds:
        return "", "", ""
    differences = [losses[seed] - reference[seed] for seed in seeds]
    return _spread(differences), _ratio(losses, reference), verdict(differences)


def _ratio(losses: Losses, reference: Losses) -> str:
    """The mean of the ratios, seed by seed."""
    seeds = losses.keys() & reference.keys()
    if not seeds:
        return ""
    return f"{statistics.fmean(losses[seed] / reference[seed] for seed in seeds):.4f}"


def verdict(differences: Sequence[float]) -> str:
    """What the differences, seed by seed, say in a word."""
    if len(differences) < 2:
        return "one seed"
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if abs(mean) <= 2 * deviation:
        return "tie"
    return "higher" if mean > 0 else "lower"


def _rises(found: Mapping[str, list[Record]]) -> str:
    """The worst of any seed, of arms that are evaluated after each outer step."""
    rows = ["### The largest rise of the loss from one outer step to the next", ""]
    for name in ("three-that-stay", *CHURN):
        rises = [rise(each) for each in found.get(name, ())]
        rows.append(f"- {name}: {f'{max(rises):.4f} nats' if rises else 'not measured yet'}")
    return "\n".join([*rows, "", "Asked for: no rise above 0.1 nats at a join."])


def rise(record: Record) -> float:
    """How much the loss of θ rose at most between two evaluations; 0 if it never did."""
    losses = [loss for _, loss, _ in record.curve]
    return max(0.0, *(later - earlier for earlier, later in pairwise([losses[0], *losses])))


def _trials(found: Mapping[str, list[Record]]) -> str:
    rows = ["### Trials (seed 0)", "", "| arm | loss, nats |", "|---|---|"]
    for name, records in found.items():
        rows += [
            f"| {name} | {'diverged' if each.loss is None else f'{each.loss:.4f}'} |"
            for each in records
            if each.seed == 0
        ]
    return "\n".join(rows)


def insert_tables(page: str, text: str) -> str:
    """The page with these tables in the place of the last ones."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


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

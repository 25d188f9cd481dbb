"""Tables of the measured losses. Differences within the noise are called ties.

Ratios are shown for both kinds of held-out text. Verdicts and requirements use the sequences that
are drawn from all documents.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from scripts.research.learning.compared import (
    SEEDS_ASKED,
    Asked,
    Losses,
    by_arm,
    differences,
    losses_copied,
    losses_of,
    losses_on_strangers,
    other_losses,
    ratios,
    verdict,
)
from scripts.research.learning.record import Record
from scripts.research.learning.tokens import NO_DATA, Ordinary


@dataclass(frozen=True, slots=True)
class Table:
    """A table of arms. `asked` maps an arm to its required result against `reference`."""

    title: str
    reference: str
    arms: tuple[str, ...]
    asked: Mapping[str, Asked] = field(default_factory=dict)


CHURN = ("churn-fresh", "churn-warmup", "churn-donor", "churn-donors")

TABLES = (
    Table(
        "Peers",
        "dp",
        ("mean-2", "diloco-2", "mean-4", "diloco-4", "diloco-8", "alone"),
        {"diloco-2": Asked("÷", 1.02), "diloco-4": Asked("÷", 1.05)},
    ),
    Table(
        "From initial weights",
        "scratch-dp",
        ("scratch-diloco-2", "scratch-mean-2", "scratch-diloco-2-h6", "scratch-diloco-4"),
        {"scratch-diloco-2": Asked("÷", 1.02), "scratch-diloco-4": Asked("÷", 1.05)},
    ),
    Table(
        "From initial weights: arms that should not differ",
        "scratch-diloco-4",
        ("scratch-fp16", "scratch-int8"),
    ),
    Table(
        "Codecs, four peers",
        "diloco-4",
        ("fp16", "int8", "int4", "int4-feedback"),
        {"int8": Asked("−", 0.002), "int4": Asked("−", 0.005), "int4-feedback": Asked("−", 0.005)},
    ),
    Table(
        "Modes, four peers, 102 outer steps of 20",
        "plain-h20",
        ("streaming-1", "streaming-5", "async", "eager"),
        {"streaming-1": Asked("÷", 1.005)},
    ),
    Table("One of four peers at a quarter of the speed", "slow-equally", ("slow-by-tokens",)),
    Table(
        "Churn compared with three peers that stay",
        "three-that-stay",
        CHURN,
        {arm: Asked("÷", 1.01) for arm in ("churn-fresh", "churn-donor", "churn-donors")},
    ),
    Table(
        "Churn compared with four peers that stay and contribute a third more",
        "diloco-4",
        CHURN,
        {"churn-fresh": Asked("÷", 1.01)},
    ),
    Table(
        "Churn with peers that stay twice as long: 53 outer steps of 24",
        "three-that-stay-h24",
        ("churn-fresh-h24", "churn-donor-h24"),
    ),
    Table(
        "The gap by number of outer steps: H = 6, 12 and 24 are 212, 106 and 53",
        "dp",
        ("diloco-2-h6", "diloco-2", "diloco-4-h6", "diloco-4", "diloco-4-h24"),
        {"diloco-2-h6": Asked("÷", 1.02), "diloco-4-h6": Asked("÷", 1.05)},
    ),
    Table("Half as long: 53 outer steps on half the tokens", "dp-short", ("diloco-4-short",)),
    Table("Twice the batch, the same number of outer steps of 6", "dp-wide", ("diloco-4-wide",)),
)

RISE_MAX = 0.1
"""Largest allowed rise of the loss, in nats, from one outer step to the next when a peer joins."""


def tables(records: Sequence[Record]) -> str:
    """Return all tables in markdown, with the trials that chose the learning rates."""
    found = _with_plain_means(by_arm(records))
    ordinary = Ordinary.of(found)
    parts = [_texts(records), *([] if ordinary is None else [ordinary.explained])]
    parts += [_table(table, found, ordinary) for table in TABLES]
    parts += [_gains(found), _joiners(found), _rises(found), _trials(found)]
    return "\n\n".join(parts) + "\n"


def _with_plain_means(found: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """Add `mean-N` arms if the tuned outer optimizer of N peers is plain averaging itself."""
    means = {
        f"mean-{peers}": [
            each for each in found.get(f"diloco-{peers}", ()) if _averages_alone(each)
        ]
        for peers in (2, 4)
    }
    return {name: records for name, records in means.items() if records} | found


def _averages_alone(record: Record) -> bool:
    return bool(record.settings["outer_lr"] == 1 and record.settings["momentum"] == 0)


def _texts(records: Sequence[Record]) -> str:
    """Return a line with the digests of the texts, or a warning if arms used different texts.

    Losses on different texts cannot be compared. Trials have their own text, and are compared only
    with each other.
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


def outcome(records: Sequence[Record]) -> str:
    """Return one table of all requirements and whether they were met."""
    found = by_arm(records)
    rows = ["| | target | measured | seeds | |", "|---|---|---|---|---|"]
    rows += [
        _outcome_of(name, asked, table.reference, found)
        for table in TABLES
        for name, asked in table.asked.items()
    ]
    for name in CHURN:
        rises = [rise(each) for each in found.get(name, ())]
        told = "not measured yet | 0 | "
        if rises:
            word = "met" if max(rises) <= RISE_MAX else "**missed**"
            word = word if len(rises) >= SEEDS_ASKED else f"so far {word}"
            told = f"{max(rises):.4f} | {len(rises)} | {word}"
        rows.append(f"| largest rise of {name} in an outer step, nats | ≤ {RISE_MAX:g} | {told} |")
    return "\n".join(rows) + "\n"


def _outcome_of(name: str, asked: Asked, reference: str, found: Mapping[str, list[Record]]) -> str:
    records = found.get(name, [])
    losses, others = losses_of(records), losses_of(found.get(reference, []))
    values, told = asked.found(losses, others), "not measured yet | 0 | "
    if values:
        told = f"{_spread(values)} | {len(values)} | {asked.verdict(values)}"
    if diverged := len(records) - len(losses):
        told = f"{diverged} diverged | {len(records)} | **missed**"
    return f"| {name} {asked.sign} {reference} | ≤ {asked.most:g} | {told} |"


def _table(table: Table, found: Mapping[str, list[Record]], ordinary: Ordinary | None) -> str:
    of = table.reference
    rows = [
        f"### {table.title}",
        "",
        f"| arm | loss, nats | seeds | − {of} | ÷ {of} | | − {of}: copied; all others "
        f"| ÷ {of}, strangers | tokens for the same loss | target |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    reference = found.get(of, [])
    for name in (of, *table.arms):
        cells = _cells(found.get(name, []), [] if name == of else reference)
        tokens = NO_DATA if ordinary is None else ordinary.cell(found.get(name, []))
        rows.append(f"| {name} | {' | '.join(cells)} | {tokens} | {table.asked.get(name, '')} |")
    return "\n".join(rows)


def _cells(records: Sequence[Record], reference: Sequence[Record]) -> tuple[str, ...]:
    """Return loss, seeds, difference, ratio, verdict, partial differences, ratio on strangers."""
    losses, others = losses_of(records), losses_of(reference)
    diverged = len(records) - len(losses)
    if not losses:
        return (f"{diverged} diverged" if diverged else "not measured yet", "0", *5 * ("",))
    seeds = f"{len(losses)}" + (f"; {diverged} more diverged" if diverged else "")
    strange = _ratio(losses_on_strangers(records), losses_on_strangers(reference))
    against = _against(losses, others)
    return (_spread(list(losses.values())), seeds, *against, _parts(records, reference), strange)


def _parts(records: Sequence[Record], reference: Sequence[Record]) -> str:
    """Return the differences of the loss on copied tokens and on all other tokens."""
    parts = (differences(kind(records), kind(reference)) for kind in (losses_copied, other_losses))
    return "; ".join(_spread(found) for found in parts if found)


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.4f}"
    return f"{mean} ± {statistics.stdev(values):.4f}" if len(values) > 1 else mean


def _against(losses: Losses, reference: Losses) -> tuple[str, str, str]:
    """Return the cells that compare an arm with its reference, over their common seeds."""
    found = differences(losses, reference)
    return (_spread(found), _ratio(losses, reference), verdict(found)) if found else ("", "", "")


def _ratio(losses: Losses, reference: Losses) -> str:
    """Return the mean over the seeds of the ratio of the two losses."""
    found = ratios(losses, reference)
    return f"{statistics.fmean(found):.4f}" if found else ""


def _gains(found: Mapping[str, list[Record]]) -> str:
    """Return a table of the gains after the common start.

    The common start of all arms of a seed brings their ratios of losses closer to 1. This table
    excludes the common start.
    """
    start, dp = losses_of(found.get("start", [])), losses_of(found.get("dp", []))
    rows = ["### The gain after the start, relative to ordinary training", ""]
    rows += ["| arm | loss at the start | at the end | gain ÷ that of dp | seeds |"]
    rows += ["|---|---|---|---|---|"]
    for name in ("dp", *TABLES[0].arms):
        ends = losses_of(found.get(name, []))
        seeds = sorted(ends.keys() & start.keys() & dp.keys())
        if seeds:
            shares = [(start[seed] - ends[seed]) / (start[seed] - dp[seed]) for seed in seeds]
            spreads = (_spread([of[seed] for seed in seeds]) for of in (start, ends))
            rows.append(f"| {name} | {' | '.join(spreads)} | {_spread(shares)} | {len(seeds)} |")
    return "\n".join(rows)


def _joiners(found: Mapping[str, list[Record]]) -> str:
    """Return the extra training loss of new members: means over about a hundred joins per seed.

    Each peer trains on its own text.
    """
    rows = ["### Training loss of new joiners above that of the other peers, nats", ""]
    for name in CHURN:
        records = [each for each in found.get(name, ()) if each.joiners]
        means = [statistics.fmean(step) for step in zip(*(e.joiners for e in records), strict=True)]
        told = ", ".join(f"{each:.3f}" for each in means) or "not measured yet"
        rows.append(f"- {name}, in each inner step since the join: {told}")
    return "\n".join(rows)


def _rises(found: Mapping[str, list[Record]]) -> str:
    """Return the largest rise over all seeds, for arms evaluated after each outer step."""
    rows = ["### The largest rise of the loss from one outer step to the next", ""]
    for name in ("three-that-stay", *CHURN):
        rises = [rise(each) for each in found.get(name, ())]
        rows.append(f"- {name}: {f'{max(rises):.4f} nats' if rises else 'not measured yet'}")
    return "\n".join([*rows, "", f"Target: no rise above {RISE_MAX:g} nats at a join."])


def rise(record: Record) -> float:
    """Return the largest rise of the loss of θ between two evaluations, or 0 if it never rose."""
    losses = [loss for _, loss, _ in record.curve]
    return max(0.0, *(later - earlier for earlier, later in pairwise([losses[0], *losses])))


def _trials(found: Mapping[str, list[Record]]) -> str:
    rows = ["### Trials (seed 0)", "", "| arm | loss, nats |", "|---|---|"]
    for name, records in found.items():
        rows += [
            f"| {name} | {'diverged' if each.loss is None else f'{each.loss:.4f}'} |"
            for each in records
            if each.seed == 0 and name != "start"
        ]
    return "\n".join(rows)


def insert(page: str, name: str, text: str) -> str:
    """Replace the text between the comments "NAME: begin" and "NAME: end" of a page."""
    begin, end = (f"<!-- {name}: {where} -->" for where in ("begin", "end"))
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n{end}{after}"

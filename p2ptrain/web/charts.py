"""Turn the history into what the page's charts need: few points, whatever the length of the run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name
from p2ptrain.web import capped
from p2ptrain.web.history import PEERS_MAX, SAMPLES_MAX, STEP_COLUMNS, History, Row

POINTS, POINTS_MAX = 800, 4000
"""Usual and maximum number of points of a chart. A screen has about 2,000 columns."""

RECENT_STEPS = 20
THROUGHPUT_POINTS = 120
THROUGHPUT_PEERS = 23
"""Number of peers with a line of their own; all others are added up as `REST`."""

REST = "rest"
AVERAGED = ("loss", "held_out", "gradient_norm")
"""Columns of which a thinned row has the mean. Of all others, it has the last value."""

Rates = list[float | None]
"""Tokens per second in each group of outer steps; None where the time is unknown."""

DAY_S = 86_400.0
EVENTS_MAX = 500
SAMPLE_CHARACTERS_MAX = 4000


def series(history: History, first: int, points: int, now: float | None = None) -> Row:
    """Return the body of `/api/v1/series`, without its serial. `now` is in Unix seconds."""
    wall = time.time() if now is None else now
    rows = history.steps(first)
    newest = history.newest_step()
    recent = history.peer_steps(max(0, newest - RECENT_STEPS + 1), newest)
    contributors = {
        name: _contributors(history, since)
        for name, since in (("all", None), ("day", wall - DAY_S), ("week", wall - 7 * DAY_S))
    }
    ends, rates = _throughput(history, rows)
    peers = dict.fromkeys(str(each["peer"]) for each in [*contributors["all"], *recent])
    peers.update(dict.fromkeys(rates))
    return {
        "schema": 1,
        "steps": by_column(thinned(rows, points)),
        "peers": [with_name(peer) for peer in list(peers)[:PEERS_MAX] if peer != REST],
        "recent": [capped.plain(each) for each in recent],
        "throughput": {"step": ends, "by_peer": rates},
        "contributors": contributors,
        "unigram_entropy": _entropy(history),
    }


def with_name(peer: str) -> Row:
    return {"peer": capped.text(peer, 80), "name": name_of(peer)}


def name_of(peer: str) -> str:
    return peer_name(PeerId(peer)) if peer else ""


def by_column(rows: Sequence[Row]) -> dict[str, list[object]]:
    return {name: [capped.plain(row[name]) for row in rows] for name in STEP_COLUMNS}


def thinned(rows: Sequence[Row], points: int) -> list[Row]:
    """Merge neighbours, so that at most `points` rows are left."""
    size = -(-len(rows) // max(1, points))
    if size <= 1:
        return list(rows)
    groups = (rows[start : start + size] for start in range(0, len(rows), size))
    return [{**group[-1], **_means(group)} for group in groups]


def _means(rows: Sequence[Row]) -> Row:
    found: Row = {}
    for name in AVERAGED:
        known = [each for row in rows if isinstance(each := row[name], int | float)]
        found[name] = sum(known) / len(known) if known else None
    return found


def _contributors(history: History, since: float | None) -> list[Row]:
    found = history.contributions(since)
    total = sum(tokens for _, tokens, _ in found)
    return [
        {
            **with_name(peer),
            "tokens": tokens,
            "steps": steps,
            "share": capped.number(tokens / total),
        }
        for peer, tokens, steps in found[:PEERS_MAX]
    ]


def _throughput(history: History, rows: Sequence[Row]) -> tuple[list[int], dict[str, Rates]]:
    """Return the tokens per second of each peer, in at most `THROUGHPUT_POINTS` groups of outer
    steps. Each group is named by its last step."""
    steps = [int(str(row["step"])) for row in rows]
    if not steps:
        return [], {}
    width = -(-(steps[-1] - steps[0] + 1) // THROUGHPUT_POINTS)
    tokens = history.tokens_by_peer(steps[0], width)
    named = _lines(tokens)
    seconds = _seconds(rows, steps[0], width)
    sums: dict[str, dict[int, int]] = {}
    for group, peer, count in tokens:
        line = sums.setdefault(peer if peer in named else REST, {})
        line[group] = line.get(group, 0) + count
    by_peer = {
        line: [_rate(found.get(group, 0), took_s) for group, took_s in seconds.items()]
        for line, found in sums.items()
    }
    return [min(steps[0] + (group + 1) * width - 1, steps[-1]) for group in seconds], by_peer


def _lines(tokens: Sequence[tuple[int, str, int]]) -> set[str]:
    """Return the peers that get a line of their own: those with the most tokens."""
    sums: dict[str, int] = {}
    for _, peer, count in tokens:
        sums[peer] = sums.get(peer, 0) + count
    return set(sorted(sums, key=lambda peer: -sums[peer])[:THROUGHPUT_PEERS])


def _seconds(rows: Sequence[Row], first: int, width: int) -> Mapping[int, float | None]:
    """Return for each group of outer steps how long it took; None if that is unknown."""
    ends: dict[int, float | None] = {}
    for row in rows:
        at = row["time"]
        ends[(int(str(row["step"])) - first) // width] = at if isinstance(at, float) else None
    found: dict[int, float | None] = {}
    before: float | None = None
    for group, end in ends.items():
        found[group] = end - before if end is not None and before is not None else None
        before = end
    return found


def _rate(tokens: int, seconds: float | None) -> float | None:
    return capped.number(tokens / seconds) if seconds is not None and seconds > 0 else None


def _entropy(history: History) -> float | None:
    try:
        return capped.number(float(history.meta("unigram_entropy") or ""))
    except ValueError:
        return None


def step_event(history: History, row: Row) -> Row:
    """Return the data of the event `step`: a row, and the rows of the peers in that step."""
    step = int(str(row["step"]))
    peers = [
        {**each, "name": name_of(str(each["peer"]))} for each in history.peer_steps(step, step)
    ]
    return {"step": capped.plain(row), "peers": [capped.plain(each) for each in peers]}


def event(row: Row) -> Row:
    """Return an event as the page gets it."""
    found = {name: capped.plain(each) for name, each in row.items()}
    return {**found, "name": name_of(str(row["peer"] or ""))}


def samples(history: History, prompts: Sequence[str]) -> Row:
    """Return the body of `/api/v1/samples`. A sample can be any text: a model wrote it."""
    rows = [
        {
            **row,
            **{who: capped.text(str(row[who]), 80) for who in ("peer", "told_by") if who in row},
            "text": _sample_text(row),
        }
        for row in history.samples()
    ]
    return {"schema": 1, "prompts": list(prompts), "samples": rows[-SAMPLES_MAX:]}


def _sample_text(row: Row) -> str:
    return capped.lines(str(row["text"] or ""), SAMPLE_CHARACTERS_MAX)

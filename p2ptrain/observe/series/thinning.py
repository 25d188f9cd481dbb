"""Keep a series small: merge rows of old outer steps, and delete old events and samples.

The newest outer steps keep a row each. Older steps are merged in groups of 4, still older ones in
groups of 16, and so on, so a run of a million steps needs about five times as many rows as one of a
thousand. A merged row has the sums of counters and the means of losses (`rows.SUMMED`), so sums
over a table stay exact. Groups begin at multiples of their size, so all nodes merge the same steps.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from p2ptrain.observe.series.rows import AVERAGED, SUMMED, PeerStepRow, StepRow, columns
from p2ptrain.observe.series.tables import insert, select

RowT = TypeVar("RowT", StepRow, PeerStepRow)

GROUP = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a series keeps."""

    whole_steps: int = 1024
    """Number of newest outer steps that keep a row each: more than a chart has points."""
    whole_steps_min: int = 64
    """The same number if there are very many peers: enough for the last 20 steps of the page."""
    peer_rows_max: int = 400_000
    """Maximum number of rows of peers, about 60 MB. If there are more, fewer steps are whole."""
    events_max: int = 20_000
    """Maximum number of events, about 4 MB. The oldest are deleted first."""
    samples_max: int = 10_000
    """Maximum number of samples. Beyond it, every second outer step with samples is dropped."""
    told_events_max: int = 4000
    told_samples_max: int = 1000
    """Maximum numbers of events and samples that members have told, about 0.6 MB and 4 MB at most.
    They are asked for from the newest on. Beyond these numbers, nothing more is written."""


def thin(connection: sqlite3.Connection, bounds: Bounds) -> None:
    """Bring all tables back to their bounds. Call this inside a transaction."""
    _thin_events(connection, bounds.events_max)
    _thin_samples(connection, bounds.samples_max)
    whole = bounds.whole_steps
    _merge_old(connection, whole)
    while whole > bounds.whole_steps_min and _count(connection) > bounds.peer_rows_max:
        whole = max(bounds.whole_steps_min, whole // 2)
        _merge_old(connection, whole)


def _count(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(*) FROM peer_steps").fetchone()
    return int(count)


def _merge_old(connection: sqlite3.Connection, whole: int) -> None:
    (newest,) = connection.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()
    group, distance = GROUP, whole
    while distance < newest:
        # Only whole groups are merged, so a group is never merged while it still grows.
        _merge(connection, group, (newest - distance) // group * group)
        group, distance = group * GROUP, distance * GROUP


def _merge(connection: sqlite3.Connection, group: int, below: int) -> None:
    """Merge the rows of each group of `group` steps before step `below`."""
    found = connection.execute(
        "SELECT step / :group FROM steps WHERE step < :below"
        " GROUP BY step / :group HAVING count(*) > 1",
        {"group": group, "below": below},
    ).fetchall()
    for (number,) in found:
        within = (number * group, (number + 1) * group)
        steps = select(connection, StepRow, "step >= ? AND step < ? ORDER BY step", within)
        peers = select(connection, PeerStepRow, "step >= ? AND step < ? ORDER BY step", within)
        for table in ("steps", "peer_steps"):
            connection.execute(f"DELETE FROM {table} WHERE step >= ? AND step < ?", within)
        last = steps[-1].step
        insert(connection, [merged_steps(steps)])
        by_peer: dict[str, list[PeerStepRow]] = {}
        for row in peers:
            by_peer.setdefault(row.peer, []).append(row)
        insert(connection, [replace(merged_peer(rows), step=last) for rows in by_peer.values()])


def merged_steps(rows: Sequence[StepRow]) -> StepRow:
    """Return one row for consecutive `rows`, oldest first. Steps that are missing between them
    count as covered."""
    first, last = rows[0], rows[-1]
    covers = last.step - first.step + first.covers
    return replace(_merged(rows, [row.covers for row in rows]), covers=covers)


def merged_peer(rows: Sequence[PeerStepRow]) -> PeerStepRow:
    """Return one row for `rows` of one peer, oldest first. Means are weighted by tokens."""
    weights = [row.tokens or 0 for row in rows]
    return _merged(rows, weights if any(weights) else [1] * len(rows))


def _merged(rows: Sequence[RowT], weights: Sequence[int]) -> RowT:
    table, values = rows[0].table, dict[str, Any]()
    for column in columns(type(rows[0])):
        known = [
            (value, weight)
            for row, weight in zip(rows, weights, strict=True)
            if (value := getattr(row, column)) is not None
        ]
        if column in SUMMED[table]:
            values[column] = sum(value for value, _ in known) if known else None
        elif column in AVERAGED[table]:
            weight = sum(weight for _, weight in known)
            total = sum(value * weight for value, weight in known)
            values[column] = total / weight if weight else known[-1][0] if known else None
        else:
            values[column] = known[-1][0] if known else None
    return replace(rows[-1], **values)


def _thin_events(connection: sqlite3.Connection, most: int) -> None:
    connection.execute("DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (most,))


def _thin_samples(connection: sqlite3.Connection, most: int) -> None:
    (count,) = connection.execute("SELECT count(*) FROM samples").fetchone()
    if count > most:
        steps = connection.execute("SELECT DISTINCT step FROM samples ORDER BY step").fetchall()
        connection.executemany("DELETE FROM samples WHERE step = ?", steps[1:-1:2])

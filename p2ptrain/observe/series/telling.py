"""Choose what is new among the events and samples that members tell, within fixed bounds."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence

from p2ptrain.observe.series.rows import SampleRow, ToldEventRow, ToldRow, ToldSampleRow
from p2ptrain.observe.series.thinning import Bounds

NEAR_STEPS = 2
"""Maximum distance, in outer steps, of two accounts of one event about a peer. Two nodes hear of a
peer at slightly different times."""


def new_among(
    connection: sqlite3.Connection, rows: Sequence[ToldRow], bounds: Bounds
) -> Iterator[ToldRow]:
    """Yield the `rows` that tell something new and for which there is room."""
    events_left = bounds.told_events_max - _count(connection, ToldEventRow.table)
    samples_left = bounds.told_samples_max - _count(connection, ToldSampleRow.table)
    steps, samples = _known_events(connection), _known_samples(connection)
    for row in rows:
        if isinstance(row, ToldSampleRow):
            place = (row.step, row.prompt)
            if samples_left > 0 and place not in samples:
                samples.add(place)
                samples_left -= 1
                yield row
            continue
        near = NEAR_STEPS if row.peer else 0
        known = steps[row.kind, row.peer]
        if events_left > 0 and not any(abs(step - row.step) <= near for step in known):
            known.append(row.step)
            events_left -= 1
            yield row


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _known_events(connection: sqlite3.Connection) -> defaultdict[tuple[str, str], list[int]]:
    """Return the outer steps of all events, by kind and peer."""
    sql = "SELECT kind, peer, step FROM events UNION ALL SELECT kind, peer, step FROM told_events"
    found = defaultdict[tuple[str, str], list[int]](list)
    for kind, peer, step in connection.execute(sql):
        found[kind, peer].append(step)
    return found


def _known_samples(connection: sqlite3.Connection) -> set[tuple[int, int]]:
    tables = (SampleRow.table, ToldSampleRow.table)
    sql = " UNION ALL ".join(f"SELECT step, prompt FROM {table}" for table in tables)
    return set(connection.execute(sql).fetchall())

"""Read a series, from any process and at any time: while its node writes, and after it has ended.

Every method reads at once and returns plain rows, so a slow client of the reader does not keep the
file busy. Readers never write to the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.parse import quote

from p2ptrain.errors import StoreError, reason_of
from p2ptrain.observe.series.rows import (
    EventRow,
    PeerStepRow,
    SampleRow,
    StepRow,
    ToldEventRow,
    ToldSampleRow,
)
from p2ptrain.observe.series.tables import fault_of, has_told, select
from p2ptrain.observe.series.thinning import merged_steps
from p2ptrain.observe.series.told import as_event

BUSY_S = 1.0
STEPS_MAX = 20_000
EVENTS_MAX = 1000


class SeriesUnavailable(StoreError):
    """There is no series that this version can read. `what` says why."""

    default_code = "SERIES"


@dataclass(frozen=True, slots=True)
class Contribution:
    """Certified tokens of a peer, and the number of outer steps in which it took part."""

    peer: str
    tokens: int
    steps: int


class SeriesReader:
    """The series at `path`. Use it in one thread, and close it.

    Raises:
        SeriesUnavailable: there is no file, it is damaged, or it has another schema. Every method
            raises it too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise SeriesUnavailable("there is no series yet; the node writes it from its next step")
        with self._translated():
            # Only a database in read-only mode may be opened by a reader: see SQLite's URI names.
            name = f"file:{quote(str(path.absolute()))}?mode=ro"
            self._connection = sqlite3.connect(name, uri=True, timeout=BUSY_S, isolation_level=None)
        try:
            with self._translated():
                fault = fault_of(self._connection)
            if fault:
                raise SeriesUnavailable(f"{path.name} cannot be read: {fault}")
        except SeriesUnavailable:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise SeriesUnavailable(f"{self.path.name} cannot be read: {reason_of(exc)}") from exc

    def run(self) -> str:
        """Return the id of the run."""
        with self._translated():
            found = self._connection.execute("SELECT value FROM meta WHERE key = 'run'").fetchone()
        return str(found[0]) if found else ""

    def version(self) -> int:
        """Return a number that changes when another process has written to the file. It is only
        comparable with numbers from the same reader."""
        with self._translated():
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def newest_step(self) -> int:
        """Return the newest outer step in the series; 0 if there is none."""
        with self._translated():
            sql = "SELECT coalesce(max(step), 0) FROM steps"
            return int(self._connection.execute(sql).fetchone()[0])

    def steps(self, first: int = 0, *, points: int = STEPS_MAX) -> list[StepRow]:
        """Return the rows of outer steps from `first` on, oldest first. If there are more than
        `points`, neighbours are merged: sums of counters, means of losses."""
        with self._translated():
            found = select(self._connection, StepRow, "step >= ? ORDER BY step", (first,))
        return thinned(with_times(found), points)

    def steps_between(self, first: int, last: int, *, limit: int = 1 << 53) -> list[StepRow]:
        """Return the newest `limit` rows of the outer steps from `first` to `last`, both included,
        oldest first and as they are in the file: a time that is not known is None."""
        where = "step >= ? AND step <= ? ORDER BY step DESC LIMIT ?"
        with self._translated():
            return select(self._connection, StepRow, where, (first, last, limit))[::-1]

    def peer_steps(self, first: int, last: int | None = None) -> list[PeerStepRow]:
        """Return the rows of all peers for the outer steps from `first` to `last`, both included,
        ordered by step and peer. Without `last`, return all rows from `first` on."""
        where = "step >= ? AND step <= ? ORDER BY step, peer"
        with self._translated():
            end = 1 << 53 if last is None else last
            return select(self._connection, PeerStepRow, where, (first, end))

    def recent(self, steps: int = 20) -> list[PeerStepRow]:
        """Return the rows of all peers for the newest `steps` outer steps."""
        return self.peer_steps(max(0, self.newest_step() - steps + 1))

    def contributions(self, since: float | None = None) -> list[Contribution]:
        """Return what each peer has contributed, most tokens first: in the whole series, or in
        outer steps that ended after `since`, in Unix seconds."""
        sql = (
            "SELECT peer, sum(peer_steps.tokens),"
            " sum(coalesce(contributed, 1)) FROM peer_steps JOIN steps USING (step)"
            " WHERE peer_steps.tokens > 0 AND (:since IS NULL OR time >= :since)"
            " GROUP BY peer ORDER BY 2 DESC, peer"
        )
        with self._translated():
            return [Contribution(*row) for row in self._connection.execute(sql, {"since": since})]

    def events(self, *, before: int | None = None, limit: int = 100) -> list[tuple[int, EventRow]]:
        """Return the newest events with their ids, newest first. With `before`, return only those
        with smaller ids. Events that members told come last: their ids are negative."""
        edge = before or 1 << 53
        found = self._events("id < ? ORDER BY id DESC", edge, limit)
        return found + self._told_events(edge, limit - len(found)) if len(found) < limit else found

    def events_after(self, known: int, *, limit: int = 100) -> list[tuple[int, EventRow]]:
        """Return the events with ids larger than `known`, oldest first."""
        return self._events("id > ? ORDER BY id", known, limit)

    def _events(self, where: str, edge: int, limit: int) -> list[tuple[int, EventRow]]:
        sql = f"SELECT id, time, step, kind, peer, text FROM events WHERE {where} LIMIT ?"
        with self._translated():
            found = self._connection.execute(sql, (edge, min(limit, EVENTS_MAX))).fetchall()
        return [(number, EventRow(*values)) for number, *values in found]

    def _told_events(self, edge: int, limit: int) -> list[tuple[int, EventRow]]:
        with self._translated():
            if not has_told(self._connection):
                return []
            sql = (
                "SELECT -id, step, kind, peer, time, told_by FROM told_events"
                " WHERE -id < ? ORDER BY id LIMIT ?"
            )
            found = self._connection.execute(sql, (edge, min(limit, EVENTS_MAX))).fetchall()
        return [(number, as_event(ToldEventRow(*values))) for number, *values in found]

    def own_events(self, first: int, last: int, limit: int) -> list[EventRow]:
        """Return the newest events of the outer steps from `first` to `last` that this node has
        recorded itself, newest first."""
        where = "step >= ? AND step <= ? ORDER BY id DESC LIMIT ?"
        with self._translated():
            return select(self._connection, EventRow, where, (first, last, limit))

    def own_samples(self, first: int, last: int, limit: int) -> list[SampleRow]:
        """Return the newest samples of the outer steps from `first` to `last` that this node has
        received itself, newest first."""
        where = "step >= ? AND step <= ? ORDER BY step DESC, prompt LIMIT ?"
        with self._translated():
            return select(self._connection, SampleRow, where, (first, last, limit))

    def samples(self) -> list[SampleRow]:
        """Return the samples that this node has received itself, ordered by outer step and
        prompt."""
        with self._translated():
            return select(self._connection, SampleRow, "1 ORDER BY step, prompt")

    def told_samples(self) -> list[ToldSampleRow]:
        """Return the samples that members told, ordered by outer step and prompt, except those that
        this node has too."""
        known = {(row.step, row.prompt) for row in self.samples()}
        with self._translated():
            if not has_told(self._connection):
                return []
            found = select(self._connection, ToldSampleRow, "1 ORDER BY step, prompt")
        return [row for row in found if (row.step, row.prompt) not in known]


def with_times(rows: Sequence[StepRow]) -> list[StepRow]:
    """Give each row without a time the time of the next row, by which its step had ended."""
    known: float | None = None
    found = list[StepRow]()
    for row in reversed(rows):
        known = row.time if row.time is not None else known
        found.append(row if row.time is not None else replace(row, time=known))
    return found[::-1]


def thinned(rows: Sequence[StepRow], points: int) -> list[StepRow]:
    """Merge neighbours so that at most `points` rows are left."""
    size = -(-len(rows) // max(1, points))
    if size <= 1:
        return list(rows)
    return [merged_steps(rows[start : start + size]) for start in range(0, len(rows), size)]

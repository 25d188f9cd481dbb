"""The history of the run, as the node recorded it in `series.db`, in the form that the page gets.

The file is read in the thread of the event loop: a query takes milliseconds, and nobody but the
page's readers waits for it. If there is no file, or this version cannot read it, the history is
empty.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from p2ptrain.observe.series import SeriesReader, SeriesUnavailable, StepRow
from p2ptrain.observe.series.rows import EventRow

PEERS_MAX = 256
SAMPLES_MAX = 5000

STEP_COLUMNS = (
    *("step", "time", "attempt", "skipped", "members", "participants", "tokens", "tokens_total"),
    *("loss", "held_out", "learning_rate", "gradient_norm", "exchange_ms"),
    *("bytes_up", "bytes_down"),
)
SUMMED = {"tokens", "exchange_ms", "bytes_up", "bytes_down"}
"""Columns that are sums in a row that covers several outer steps. The page gets means: a chart of
sums would have jumps where the node has merged old rows."""

PEER_COLUMNS = (
    *("step", "peer", "tokens", "train_ms", "data_wait_ms", "wait_ms", "exchange_ms", "fetch_ms"),
    *("apply_ms", "bytes_up", "bytes_down", "loss", "gradient_norm", "cosine"),
    *("quantisation_error", "mfu", "device", "version", "path"),
)
SAMPLE_COLUMNS = ("step", "prompt", "peer", "text")

Row = dict[str, object]
Found = TypeVar("Found")


class _Reader(SeriesReader):
    """A reader of the series, with sums that only the page needs."""

    def tokens_by_peer(self, first: int, width: int) -> list[tuple[int, str, int]]:
        sql = (
            "SELECT (step - :first) / :width, peer, sum(tokens) FROM peer_steps "
            "WHERE step >= :first AND tokens > 0 GROUP BY 1, 2"
        )
        with self._translated():
            return self._connection.execute(sql, {"first": first, "width": width}).fetchall()

    def traffic(self, since: float) -> tuple[int | None, int | None]:
        sql = "SELECT sum(bytes_up), sum(bytes_down) FROM steps WHERE time >= ?"
        with self._translated():
            up, down = self._connection.execute(sql, (since,)).fetchone()
        return up, down

    def busy_ms(self, peer: str, since: float) -> int | None:
        sql = (
            "SELECT sum(train_ms) FROM peer_steps JOIN steps USING (step) "
            "WHERE peer = ? AND time >= ?"
        )
        with self._translated():
            (found,) = self._connection.execute(sql, (peer, since)).fetchone()
        return None if found is None else int(found)

    def loss_before(self, step: int) -> tuple[int | None, float | None]:
        """Return the certified tokens at outer step `step`, and the loss: held out, if known."""
        sql = (
            "SELECT tokens_total, coalesce(held_out, loss) FROM steps "
            "WHERE step >= ? ORDER BY step LIMIT 1"
        )
        with self._translated():
            found = self._connection.execute(sql, (step - 1,)).fetchone()
        return (None, None) if found is None else (found[0], found[1])


class History:
    """Reads the series at `path`, which may appear, change and be replaced at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: _Reader | None = None
        self._inode = 0
        self._is_closed = False
        self._told: object = None
        self._version = 0

    def close(self) -> None:
        """Close the series for good. Later questions have no answer, so a task that still asks does
        not open it again."""
        self._is_closed = True
        self._release()

    def _release(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def version(self) -> int:
        """Return a number that grows when the file has changed."""
        told = (self._read(_Reader.version), self._inode)
        if told != self._told:
            self._told, self._version = told, self._version + 1
        return self._version

    def newest_step(self) -> int:
        """Return the newest outer step; 0 if there is none."""
        return self._read(_Reader.newest_step) or 0

    def steps(self, first: int) -> list[Row]:
        """Return the outer steps from `first` on, oldest first."""
        return [_step(row) for row in self._read(lambda reader: reader.steps(first)) or []]

    def peer_steps(self, first: int, last: int) -> list[Row]:
        """Return the rows of all peers for the outer steps from `first` to `last`, without the
        values that are unknown."""
        rows = self._read(lambda reader: reader.peer_steps(first, last)) or []
        return [_known(row, PEER_COLUMNS) for row in rows[: (last - first + 1) * PEERS_MAX]]

    def tokens_by_peer(self, first: int, width: int) -> list[tuple[int, str, int]]:
        """Return the certified tokens of each peer in each group of `width` outer steps from
        `first` on: the number of the group, the peer, its tokens."""
        return self._read(lambda reader: reader.tokens_by_peer(first, width)) or []

    def contributions(self, since: float | None) -> list[tuple[str, int, int]]:
        """Return each peer with its certified tokens and its number of outer steps, most tokens
        first: in the whole series, or in the steps that ended after `since` (Unix seconds)."""
        found = self._read(lambda reader: reader.contributions(since)) or []
        return [(each.peer, each.tokens, each.steps) for each in found]

    def own_traffic(self, since: float) -> tuple[int | None, int | None]:
        """Return the bytes that this node sent and received in the outer steps that ended after
        `since`. None: unknown."""
        return self._read(lambda reader: reader.traffic(since)) or (None, None)

    def busy_ms(self, peer: str, since: float) -> int | None:
        """Return the milliseconds for which `peer` computed, by its own word, in the outer steps
        that ended after `since`."""
        return self._read(lambda reader: reader.busy_ms(peer, since))

    def loss_before(self, step: int) -> tuple[int | None, float | None]:
        """Return the certified tokens and the loss of the model before outer step `step`."""
        return self._read(lambda reader: reader.loss_before(step)) or (None, None)

    def events(self, before: int | None, limit: int) -> list[Row]:
        """Return the newest events whose id is less than `before`, newest first."""
        return _events(self._read(lambda reader: reader.events(before=before, limit=limit)) or [])

    def events_after(self, known: int, limit: int) -> list[Row]:
        """Return the events whose id is greater than `known`, oldest first."""
        return _events(self._read(lambda reader: reader.events_after(known, limit=limit)) or [])

    def samples(self) -> list[Row]:
        """Return the newest samples, oldest first. Those that a member told say so."""
        own = [_known(row, SAMPLE_COLUMNS) for row in self._read(_Reader.samples) or []]
        columns = (*SAMPLE_COLUMNS, "told_by")
        told = [_known(row, columns) for row in self._read(_Reader.told_samples) or []]
        rows = sorted([*own, *told], key=lambda row: (row["step"], row["prompt"]))
        return rows[-SAMPLES_MAX:]

    def meta(self, key: str) -> str | None:
        return self._read(lambda reader: reader.meta(key))

    def _read(self, question: Callable[[_Reader], Found]) -> Found | None:
        """Return the answer to a question; None if there is no series that can be read."""
        if self._is_closed:
            return None
        try:
            return question(self._opened())
        except (OSError, SeriesUnavailable, sqlite3.Error):
            self._release()
            return None

    def _opened(self) -> _Reader:
        inode = self._path.stat().st_ino
        if self._reader is None or inode != self._inode:
            self._release()
            self._reader, self._inode = _Reader(self._path), inode
        return self._reader


def _step(row: StepRow) -> Row:
    found = {name: getattr(row, name) for name in STEP_COLUMNS}
    if row.covers > 1:
        for name in SUMMED:
            found[name] = None if found[name] is None else round(found[name] / row.covers)
    return found


def _known(row: object, columns: Iterable[str]) -> Row:
    found = ((name, getattr(row, name)) for name in columns)
    return {name: value for name, value in found if value is not None}


def _events(rows: Iterable[tuple[int, EventRow]]) -> list[Row]:
    names = ("time", "step", "kind", "peer", "text")
    return [{"id": number, **{name: getattr(row, name) for name in names}} for number, row in rows]

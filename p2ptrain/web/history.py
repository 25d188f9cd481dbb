"""The history of the run, as the node recorded it in `series.db`.

The file is read in the thread of the event loop: a query takes milliseconds, and nobody but the
page's readers waits for it. If there is no file, or this version cannot read it, the history is
empty.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

SCHEMA = "1"
BUSY_S = 1.0
PEERS_MAX = 256
SAMPLES_MAX = 5000

STEP_COLUMNS = (
    *("step", "time", "attempt", "skipped", "members", "participants", "tokens", "tokens_total"),
    *("loss", "held_out", "learning_rate", "gradient_norm", "exchange_ms"),
    *("bytes_up", "bytes_down"),
)
PEER_COLUMNS = (
    *("step", "peer", "tokens", "train_ms", "data_wait_ms", "wait_ms", "exchange_ms", "fetch_ms"),
    *("apply_ms", "bytes_up", "bytes_down", "loss", "gradient_norm", "cosine"),
    *("quantisation_error", "mfu", "device", "version", "path"),
)
EVENT_COLUMNS = ("id", "time", "step", "kind", "peer", "text")
SAMPLE_COLUMNS = ("step", "prompt", "peer", "text")

Row = dict[str, object]


class History:
    """Reads the series at `path`, which may appear, change and be replaced at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._told: object = None
        self._version = 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def version(self) -> int:
        """Return a number that grows when the file has changed."""
        told = (self._rows("PRAGMA data_version"), self._inode)
        if told != self._told:
            self._told, self._version = told, self._version + 1
        return self._version

    def newest_step(self) -> int:
        """Return the newest outer step; -1 if there is none."""
        found = self._rows("SELECT max(step) FROM steps")
        return -1 if not found or found[0][0] is None else int(found[0][0])

    def steps(self, first: int) -> list[Row]:
        """Return the outer steps from `first` on, oldest first."""
        sql = f"SELECT {', '.join(STEP_COLUMNS)} FROM steps WHERE step >= ? ORDER BY step"
        return _named(STEP_COLUMNS, self._rows(sql, (first,)))

    def step(self, step: int) -> Row | None:
        """Return the row of one outer step, or of the group of steps in which it was merged."""
        sql = f"SELECT {', '.join(STEP_COLUMNS)} FROM steps WHERE step >= ? ORDER BY step LIMIT 1"
        found = _named(STEP_COLUMNS, self._rows(sql, (step,)))
        return found[0] if found else None

    def peer_steps(self, first: int, last: int) -> list[Row]:
        """Return the rows of all peers for the outer steps from `first` to `last`, without the
        values that are unknown."""
        sql = (
            f"SELECT {', '.join(PEER_COLUMNS)} FROM peer_steps WHERE step BETWEEN ? AND ? "
            f"ORDER BY step, peer LIMIT {(last - first + 1) * PEERS_MAX}"
        )
        rows = _named(PEER_COLUMNS, self._rows(sql, (first, last)))
        return [{name: each for name, each in row.items() if each is not None} for row in rows]

    def tokens_by_peer(self, first: int, width: int) -> list[tuple[int, str, int]]:
        """Return the certified tokens of each peer in each group of `width` outer steps from
        `first` on: the number of the group, the peer, its tokens."""
        sql = (
            "SELECT (step - ?1) / ?2, peer, sum(tokens) FROM peer_steps "
            "WHERE step >= ?1 AND tokens > 0 GROUP BY 1, 2"
        )
        return [(int(n), str(peer), int(sum_)) for n, peer, sum_ in self._rows(sql, (first, width))]

    def contributions(self, since: float | None) -> list[tuple[str, int, int]]:
        """Return each peer with its certified tokens and its number of outer steps, most tokens
        first: in the whole series, or in the steps that ended after `since` (Unix seconds)."""
        sql = (
            "SELECT peer, sum(peer_steps.tokens), count(*) FROM peer_steps JOIN steps USING (step) "
            "WHERE peer_steps.tokens > 0 AND (?1 IS NULL OR time >= ?1) "
            "GROUP BY peer ORDER BY 2 DESC, peer"
        )
        found = self._rows(sql, (since,))
        return [(str(peer), int(tokens), int(steps)) for peer, tokens, steps in found]

    def own_traffic(self, since: float) -> tuple[int, int] | None:
        """Return the bytes that this node sent and received in the outer steps that ended after
        `since`; None if there are none."""
        sql = "SELECT sum(bytes_up), sum(bytes_down) FROM steps WHERE time >= ?"
        found = self._rows(sql, (since,))
        if not found or found[0][0] is None:
            return None
        return int(found[0][0]), int(found[0][1] or 0)

    def busy_ms(self, peer: str, since: float) -> int | None:
        """Return the milliseconds for which `peer` computed, by its own word, in the outer steps
        that ended after `since`."""
        sql = (
            "SELECT sum(train_ms) FROM peer_steps JOIN steps USING (step) "
            "WHERE peer = ? AND time >= ?"
        )
        found = self._rows(sql, (peer, since))
        return None if not found or found[0][0] is None else int(found[0][0])

    def events(self, before: int, limit: int) -> list[Row]:
        """Return the newest events whose id is less than `before`, newest first."""
        return self._events("id < ? ORDER BY id DESC", before, limit)

    def events_after(self, known: int, limit: int) -> list[Row]:
        """Return the events whose id is greater than `known`, oldest first."""
        return self._events("id > ? ORDER BY id", known, limit)

    def _events(self, where: str, edge: int, limit: int) -> list[Row]:
        sql = f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE {where} LIMIT ?"
        return _named(EVENT_COLUMNS, self._rows(sql, (edge, limit)))

    def samples(self) -> list[Row]:
        """Return the newest samples, oldest first."""
        sql = (
            f"SELECT {', '.join(SAMPLE_COLUMNS)} FROM samples "
            f"ORDER BY step DESC, prompt DESC LIMIT {SAMPLES_MAX}"
        )
        return _named(SAMPLE_COLUMNS, self._rows(sql))[::-1]

    def meta(self, key: str) -> str | None:
        found = self._rows("SELECT value FROM meta WHERE key = ?", (key,))
        return str(found[0][0]) if found else None

    def _rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connected().execute(sql, values).fetchall()
        except (OSError, sqlite3.Error, _NoSeries):
            self.close()
            return []

    def _connected(self) -> sqlite3.Connection:
        inode = self._path.stat().st_ino
        if self._connection is None or inode != self._inode:
            self.close()
            name = f"file:{quote(str(self._path.absolute()))}?mode=ro"
            self._connection = sqlite3.connect(name, uri=True, timeout=BUSY_S, isolation_level=None)
            self._inode = inode
            told = self._connection.execute("SELECT value FROM meta WHERE key = 'schema'")
            if told.fetchone() != (SCHEMA,):
                raise _NoSeries
        return self._connection


class _NoSeries(Exception):
    """The file has a schema that this version cannot read."""


def _named(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[Row]:
    return [dict(zip(columns, row, strict=True)) for row in rows]

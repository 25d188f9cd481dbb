"""Write a series from one thread.

A series is worth less than the node. So a damaged file, or one of another schema or run, is put
aside under the name `series.db.aside`, and a new one begins. Only the newest such file is kept.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from p2ptrain.observe.series.rows import COUNT_MAX, PeerStepRow, Row, StepRow, ToldRow
from p2ptrain.observe.series.tables import CREATE_TOLD, create, fault_of, insert, select
from p2ptrain.observe.series.telling import new_among
from p2ptrain.observe.series.thinning import Bounds, thin

THIN_EVERY = 64
"""Number of batches with outer steps between two thinnings, which take some milliseconds each."""

BUSY_S = 2.0
"""Seconds for which a write waits for another process that has locked the file."""

JOURNAL_BYTES_MAX = 8 * 2**20
"""Size to which SQLite cuts its write-ahead log. A reader that reads for long lets it grow."""


class SeriesWriter:
    """A series that is open for writing. Use it in one thread.

    `notice` says in words which file was put aside and why; "" if none was.

    Raises:
        OSError, sqlite3.Error: the file cannot be opened, made or renamed.
    """

    def __init__(self, path: Path, run: str, bounds: Bounds | None = None) -> None:
        self.path = path
        self.notice = ""
        self._run = run
        self._bounds = bounds or Bounds()
        self._batches = 0
        self._connection = self._open()
        self._inode = path.stat().st_ino

    def close(self) -> None:
        """Close the file. SQLite then moves its write-ahead log into it."""
        self._connection.close()

    def write(self, rows: Sequence[Row]) -> None:
        """Write `rows` in one transaction.

        Raises sqlite3.Error, OSError: nothing was written; this writer must be closed.
        """
        if self.path.stat().st_ino != self._inode:
            raise sqlite3.OperationalError("another file has replaced the series")
        with _transaction(self._connection):
            insert(self._connection, rows)
            if any(isinstance(row, StepRow) for row in rows):
                self._batches += 1
                if self._batches % THIN_EVERY == 0:
                    thin(self._connection, self._bounds)

    def fill(self, step: StepRow, peers: Sequence[PeerStepRow]) -> bool:
        """Write rows that a member told. They do not replace known values. Return False, and write
        nothing, if this series has other rows for some of the steps that `step` covers.

        There is one exception: rows without a time were only copied from the ledger. If `step`
        covers several of them, it takes their place, since the teller has merged these steps."""
        first = step.step - step.covers
        with _transaction(self._connection):
            where = "step > ? AND step - covers < ?"
            found = select(self._connection, StepRow, f"{where} ORDER BY step", (first, step.step))
            if any((row.step, row.covers) != (step.step, step.covers) for row in found):
                inside = all(
                    first <= row.step - row.covers < row.step <= step.step for row in found
                )
                if not inside or any(row.time is not None for row in found):
                    return False
                step = replace(step, tokens_total=found[-1].tokens_total or step.tokens_total)
                self._delete(first, step.step)
            insert(self._connection, [step, *peers], own=False)
            return True

    def tell(self, rows: Sequence[ToldRow]) -> None:
        """Write events and samples that a member told, except those that are known already. The
        first teller of an event or a sample counts."""
        with _transaction(self._connection):
            insert(self._connection, new_among(self._connection, rows, self._bounds), own=False)

    def _delete(self, after: int, last: int) -> None:
        for table in ("steps", "peer_steps"):
            sql = f"DELETE FROM {table} WHERE step > ? AND step <= ?"
            self._connection.execute(sql, (after, last))

    def forget_after(self, step: int) -> None:
        """Delete the rows of outer steps after `step`."""
        with _transaction(self._connection):
            self._delete(step, COUNT_MAX)

    def thin(self) -> None:
        with _transaction(self._connection):
            thin(self._connection, self._bounds)

    def _open(self) -> sqlite3.Connection:
        fault = _fault_in(self.path, self._run) if self.path.exists() else ""
        if fault:
            aside = self.path.with_name(f"{self.path.name}.aside")
            for end in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.replace(f"{self.path}{end}", f"{aside}{end}")
            self.notice = f"{self.path.name} was renamed to {aside.name}: {fault}"
        return _connected(self.path, self._run)


class _transaction:
    """A transaction that is rolled back on an error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if kind is None:
            self._connection.execute("COMMIT")
        else:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")


def _fault_in(path: Path, run: str) -> str:
    """Return why the existing file cannot be used, in words; "" if it can.

    Raises sqlite3.OperationalError: the file cannot be read now, for instance because it is locked.
    """
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        if path.stat().st_size == 0:
            return ""
        (checked,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        return fault_of(connection, run) if checked == "ok" else "it is damaged"
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return "it is damaged"
    finally:
        connection.close()


def _connected(path: Path, run: str) -> sqlite3.Connection:
    # The file names peers, so only its owner may read it, as with the journal.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may cost the last rows but does not damage the file. No write waits for the
        # disk then, except when SQLite moves its log into the file.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_BYTES_MAX}")
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            create(connection, run)
        connection.executescript(CREATE_TOLD)
    except BaseException:
        connection.close()
        raise
    return connection

"""The SQL of a series: create its tables, check a file, and read and write rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from p2ptrain.observe.series.rows import SCHEMA, TABLES, Row, columns

RowT = TypeVar("RowT", bound=Row)

CREATE = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE steps(step INTEGER PRIMARY KEY, time REAL, attempt INTEGER, skipped INTEGER,
  members INTEGER, participants INTEGER, tokens INTEGER, tokens_total INTEGER, loss REAL,
  held_out REAL, learning_rate REAL, gradient_norm REAL, exchange_ms INTEGER, bytes_up INTEGER,
  bytes_down INTEGER, covers INTEGER NOT NULL DEFAULT 1, told_by TEXT);
CREATE TABLE peer_steps(step INTEGER, peer TEXT, tokens INTEGER, train_ms INTEGER,
  data_wait_ms INTEGER, wait_ms INTEGER, exchange_ms INTEGER, fetch_ms INTEGER, apply_ms INTEGER,
  bytes_up INTEGER, bytes_down INTEGER, loss REAL, gradient_norm REAL, cosine REAL,
  quantisation_error REAL, mfu REAL, device TEXT, version TEXT, contributed INTEGER, path TEXT,
  told_by TEXT, PRIMARY KEY(step, peer)) WITHOUT ROWID;
CREATE TABLE events(id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL, step INTEGER, kind TEXT,
  peer TEXT, text TEXT);
CREATE TABLE samples(step INTEGER, prompt INTEGER, peer TEXT, text TEXT,
  PRIMARY KEY(step, prompt)) WITHOUT ROWID;
"""

CREATE_TOLD = """
CREATE TABLE IF NOT EXISTS told_events(id INTEGER PRIMARY KEY, step INTEGER, kind TEXT, peer TEXT,
  time REAL, told_by TEXT, UNIQUE(step, kind, peer));
CREATE TABLE IF NOT EXISTS told_samples(step INTEGER, prompt INTEGER, peer TEXT, text TEXT,
  told_by TEXT, PRIMARY KEY(step, prompt)) WITHOUT ROWID;
"""
"""Tables of their own: what members tell never displaces what this node has observed, and a file of
an earlier version gets them too."""


def create(connection: sqlite3.Connection, run: str) -> None:
    """Create the tables in an empty database."""
    connection.executescript(CREATE)
    told = {"schema": SCHEMA, "run": run}
    connection.executemany("INSERT INTO meta VALUES (?, ?)", told.items())


def fault_of(connection: sqlite3.Connection, run: str = "") -> str:
    """Return why this code cannot use the database, in words; "" if it can. If `run` is given, the
    series of another run is a fault too.

    Raises sqlite3.Error: the file is damaged or cannot be read."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if "meta" not in names:
        return "it is not a series"
    told = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    if told.get("schema") != SCHEMA:
        return f"it has schema {told.get('schema')}, and this version uses schema {SCHEMA}"
    if run and told.get("run") != run:
        return "it belongs to another run"
    missing = {kind.table for kind in TABLES} - names
    return f"it has no table {min(missing)}" if missing else ""


def has_told(connection: sqlite3.Connection) -> bool:
    """Return whether the series has the tables for what members tell."""
    sql = "SELECT count(*) FROM sqlite_master WHERE name IN ('told_events', 'told_samples')"
    return bool(connection.execute(sql).fetchone()[0] == 2)


def select(
    connection: sqlite3.Connection, kind: type[RowT], where: str, values: Sequence[object] = ()
) -> list[RowT]:
    """Return the rows of a table for which `where` holds, which may also order and limit them."""
    sql = f"SELECT {', '.join(columns(kind))} FROM {kind.table} WHERE {where}"
    return [kind(*found) for found in connection.execute(sql, values)]


def insert(connection: sqlite3.Connection, rows: Iterable[Row], *, own: bool = True) -> None:
    """Write rows of any tables. If a row with the same key exists, the known values of the new row
    replace its values; without `own`, they only replace unknown values."""
    for row in rows:
        connection.execute(_insertion(type(row), own), _values(row))


def _values(row: Row) -> list[Any]:
    return [getattr(row, column) for column in columns(type(row))]


def _insertion(kind: type[Row], own: bool) -> str:
    names = columns(kind)
    marks = ", ".join("?" * len(names))
    sql = f"INSERT INTO {kind.table} ({', '.join(names)}) VALUES ({marks})"
    if not kind.key:
        return sql
    order = "excluded.{0}, {0}" if own else "{0}, excluded.{0}"
    rest = (each for each in names if each not in (*kind.key, "covers"))
    sets = ", ".join(f"{each} = coalesce({order.format(each)})" for each in rest)
    return f"{sql} ON CONFLICT ({', '.join(kind.key)}) DO UPDATE SET {sets}"

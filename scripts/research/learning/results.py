"""Records on disk: one JSON line each, in a file for each comparison, sorted.

New records of a queue stay in the queue's folder until they are collected. Both places are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from scripts.research.learning.record import Record
from scripts.research.learning.search import Key

RESULT = "result.json"


def read_results(results: Path, folder: Path) -> dict[Key, Record]:
    """Return all records: those collected in `results`, and those in a queue's `folder`."""
    lines = [line for file in sorted(results.glob("*.jsonl")) for line in _lines(file)]
    lines += [file.read_text() for file in sorted(folder.glob(f"*/{RESULT}"))]
    records = [Record.of(json.loads(line)) for line in lines]
    return {_key(each): each for each in records}


def write_result(record: Record, folder: Path) -> None:
    """Write a record into the arm's folder atomically."""
    _write(folder / RESULT, json.dumps(record.plain(), sort_keys=True) + "\n")


def collect(records: Iterable[tuple[str, Record]], results: Path) -> None:
    """Add records to the files of their comparisons.

    Existing records are kept, even if their arms are unknown at the moment: such an arm can become
    known again after a search has ended.
    """
    by_file: dict[str, list[Record]] = {}
    for comparison, record in records:
        by_file.setdefault(comparison, []).append(record)
    results.mkdir(parents=True, exist_ok=True)
    for comparison, found in by_file.items():
        file = results / f"{comparison}.jsonl"
        before = [Record.of(json.loads(line)) for line in _lines(file)]
        kept = {_key(each): each for each in (*before, *found)}
        ordered = sorted(kept.values(), key=lambda each: (each.arm, each.seed, each.digest))
        text = "".join(json.dumps(each.plain(), sort_keys=True) + "\n" for each in ordered)
        _write(file, text)


def _key(record: Record) -> Key:
    return record.arm, record.seed, record.digest


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(f".{os.getpid()}")
    making.write_text(text)
    os.replace(making, path)

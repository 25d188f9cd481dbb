"""The journal records what a node does. It never harms the node, and a crash loses at most one
line."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from p2ptrain.observe.journal import (
    TEXT_CHARACTERS_MAX,
    Journal,
    newest_records,
    put_aside,
    read_journal,
)


def journal_at(path: Path, bytes_max: int = 1 << 20) -> Journal:
    clock = iter(range(1000, 100_000))
    return Journal(path, bytes_max=bytes_max, wall=lambda: 1.7e9, monotonic=lambda: next(clock))


def test_line_holds_the_event_both_clocks_and_the_fields(tmp_path: Path) -> None:
    with journal_at(tmp_path / "journal.jsonl") as journal:
        journal.write("commit", step=3, update="ab", loss=2.5, peers=("a", "b"), skipped=None)
    (line,) = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "event": "commit",
        "time": 1.7e9,
        "monotonic_s": 1000,
        "step": 3,
        "update": "ab",
        "loss": 2.5,
        "peers": ["a", "b"],
        "skipped": None,
    }


def test_unusual_values_are_written_as_text_and_long_text_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journal_at(path) as journal:
        journal.write("odd", loss=float("nan"), home=Path("/h"), raw=b"\x01\xff", nested={1: {2.0}})
        journal.write("long", stderr="x" * 100_000)
    odd, long = read_journal(path)
    assert (odd["loss"], odd["home"], odd["raw"]) == ("nan", "/h", "01ff")
    assert odd["nested"] == {"1": [2.0]}
    assert long["stderr"] == "x" * TEXT_CHARACTERS_MAX


def test_text_from_a_peer_cannot_forge_a_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journal_at(path) as journal:
        journal.write("heard", state='ok"}\n{"event":"forged"}\ud800')
    (record,) = read_journal(path)
    assert record["event"] == "heard"


def test_text_from_a_peer_is_escaped_and_read_back_unchanged(tmp_path: Path) -> None:
    path, text = (
        tmp_path / "journal.jsonl",
        "θ ok\x9b2J\x1b[31m\x7f\u202e\u2028 \U000e0001 \ud800 é",
    )
    with journal_at(path) as journal:
        journal.write("heard", state=text, nested={text: [text]})
    assert path.read_text().removesuffix("\n").isprintable()
    assert "θ ok" in path.read_text()
    (record,) = read_journal(path)
    assert (record["state"], record["nested"]) == (text, {text: [text]})


def test_journal_continues_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for event in ("first", "second"):
        with journal_at(path) as journal:
            journal.write(event)
    assert [record["event"] for record in read_journal(path)] == ["first", "second"]


def test_line_truncated_by_a_crash_is_the_only_one_lost(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journal_at(path) as journal:
        journal.write("whole")
        journal.write("cut")
    path.write_bytes(path.read_bytes()[:-9])
    with journal_at(path) as journal:
        journal.write("after")
    assert [record["event"] for record in read_journal(path)] == ["whole", "after"]


def test_full_journal_is_rotated_and_its_disk_use_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journal_at(path, bytes_max=1000) as journal:
        for number in range(100):
            journal.write("tick", number=number)
    assert path.stat().st_size <= 1000
    assert put_aside(path).stat().st_size <= 1000
    numbers: list[Any] = [record["number"] for record in read_journal(path)]
    assert numbers == list(range(numbers[0], 100))
    assert len(numbers) >= 10


def test_unwritable_journal_counts_lost_lines_and_raises_no_error(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "journal.jsonl"
    with journal_at(path) as journal:
        journal.write("lost")
        assert journal.lost == 1
        path.parent.mkdir()
        journal.write("kept")
    assert journal.lost == 1
    assert [record["event"] for record in read_journal(path)] == ["kept"]


def test_missing_journal_reads_as_empty(tmp_path: Path) -> None:
    assert list(read_journal(tmp_path / "none.jsonl")) == []


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journal_at(path, bytes_max=10_000) as journal:

        def write_many(who: int) -> None:
            for _ in range(50):
                journal.write("t", who=who)

        threads = [threading.Thread(target=write_many, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    kept = put_aside(path).read_bytes() + path.read_bytes()
    assert all(json.loads(line)["event"] == "t" for line in kept.splitlines())


def test_newest_records_are_read_without_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert newest_records(path) == []
    with Journal(path) as journal:
        for number in range(50):
            journal.write("step", number=number)
    assert [each["number"] for each in newest_records(path)] == list(range(50))
    found = [each["number"] for each in newest_records(path, bytes_max=200)]
    assert found == list(range(50 - len(found), 50))
    assert 0 < len(found) < 4

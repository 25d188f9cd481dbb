"""`p2ptrain events` prints sentences, oldest first, and follows the file without missing any."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p2ptrain.cli.commands.watching.events import followed, kinds_in, newest
from p2ptrain.observe.series import EventRow
from p2ptrain.observe.series.writer import SeriesWriter
from tests.cli.conftest import Command
from tests.cli.watching.made import NOW, PEERS, made_events, write_series

RUN = "ab" * 32


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_series(tmp_path, RUN)
    return tmp_path


def texts(found: list[tuple[int, EventRow]]) -> list[str]:
    return [row.text for _, row in found]


def test_newest_events_are_printed_oldest_first(p2ptrain: Command, home: Path) -> None:
    shown = p2ptrain("events", "--home", home, "--last", 2)
    assert (shown.code, shown.err) == (0, "")
    assert [line[21:] for line in shown.out.splitlines()] == [
        "step 1      skip        step 4 was skipped",
        "step 2      leave       calm-fox left the run",
    ]
    told = p2ptrain("events", "--home", home, "--kind", "join, leave", "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in told] == [1, 3]
    assert json.loads(told[0]) == {
        "schema": 1,
        "id": 1,
        "time": NOW,
        "step": 0,
        "kind": "join",
        "peer": PEERS[1],
        "peer_name": "swift-moose",
        "text": "calm-fox joined the run",
    }


def test_hostile_text_is_printed_without_control_characters(p2ptrain: Command, home: Path) -> None:
    writer = SeriesWriter(home / "series.db", RUN)
    writer.write([EventRow(NOW, 9, "warning", "", "\x1b[2J\u202e\r\n" + "x" * 3000)])
    writer.close()
    (line,) = p2ptrain("events", "--home", home, "--last", 1).out.splitlines()
    assert line.isprintable()
    assert len(line) == 400


def test_newest_events_of_a_rare_kind_are_found_on_older_pages(home: Path) -> None:
    writer = SeriesWriter(home / "series.db", RUN)
    writer.write([EventRow(NOW, 9, "validation", "", "validated")] * 1200)
    writer.close()
    assert texts(newest(home, 5, frozenset({"skip", "join"}))) == [
        "calm-fox joined the run",
        "step 4 was skipped",
    ]
    assert len(newest(home, 700, kinds_in(""))) == 700


def test_unknown_kind_and_missing_series_are_errors(p2ptrain: Command, tmp_path: Path) -> None:
    write_series(tmp_path, RUN)
    wrong = p2ptrain("events", "--home", tmp_path, "--kind", "jion")
    assert (wrong.code, "the kinds are amendment, branch" in wrong.err) == (2, True)
    (tmp_path / "series.db").unlink()
    none = p2ptrain("events", "--home", tmp_path)
    assert (none.code, "error[SERIES] there is no series yet" in none.err) == (4, True)


class Pauses:
    """Does one thing at each pause of a follower, and ends it after the last."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self.actions: Iterator[Callable[[], object]] = iter(actions)

    def __call__(self, seconds: float) -> None:
        try:
            next(self.actions)()
        except StopIteration:
            raise KeyboardInterrupt from None


def follow(home: Path, *actions: Callable[[], object], known: int = 0) -> list[str]:
    found = list[str]()
    with pytest.raises(KeyboardInterrupt):
        for _, row in followed(home, known, kinds_in("join,leave"), Pauses(*actions)):
            found.append(row.text)
    return found


def write(home: Path, *rows: EventRow) -> None:
    writer = SeriesWriter(home / "series.db", RUN)
    writer.write(rows)
    writer.close()


def test_follower_prints_new_events_of_its_kinds_once(home: Path) -> None:
    news = EventRow(NOW, 9, "join", PEERS[2], "otter joined")
    other = EventRow(NOW, 9, "skip", "", "skipped")
    found = follow(
        home, lambda: None, lambda: write(home, other, news), lambda: write(home, other), known=3
    )
    assert found == ["otter joined"]


def test_follower_waits_for_a_file_and_follows_its_successor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node puts a damaged file aside and begins a new one."""

    def begin() -> None:
        write(tmp_path, made_events()[0])

    def begin_again() -> None:
        (tmp_path / "series.db").rename(tmp_path / "series.db.aside")
        write(tmp_path, made_events()[2])

    assert follow(tmp_path, lambda: None, begin, begin_again, lambda: None) == [
        "calm-fox joined the run",
        "calm-fox left the run",
    ]
    assert capsys.readouterr().err.count("waiting: there is no series yet") == 1

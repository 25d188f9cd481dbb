"""Charts get few points that keep what matters, whatever the length of the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from p2ptrain.names import peer_name
from p2ptrain.observe.series.rows import PeerStepRow, SampleRow, StepRow
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.testing.series_history import history as made_history
from p2ptrain.testing.series_history import write_history
from p2ptrain.web import charts
from p2ptrain.web.history import STEP_COLUMNS, History
from p2ptrain.web.state import content_key, sentence
from tests.web.serving import PEERS, RUN

NOW = 1_790_000_000.0


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    found = History(tmp_path / "series.db")
    yield found
    found.close()


def write(folder: Path, *rows: StepRow | PeerStepRow | SampleRow) -> None:
    writer = SeriesWriter(folder / "series.db", RUN)
    writer.write(rows)
    writer.close()


def test_series_that_does_not_exist_is_empty(history: History) -> None:
    found = charts.series(history, 0, 800)
    assert found["steps"] == {name: [] for name in STEP_COLUMNS}
    assert (found["recent"], found["peers"]) == ([], [])
    assert found["throughput"] == {"step": [], "by_peer": {}}
    assert found["contributors"] == {"all": [], "day": [], "week": []}


def test_closed_history_does_not_open_the_series_again(history: History, tmp_path: Path) -> None:
    write(tmp_path, SampleRow(1, 0, PEERS[0], "Once upon a time"))
    assert [row["text"] for row in history.samples()] == ["Once upon a time"]
    history.close()
    assert history.samples() == []


def test_thinned_rows_have_last_counters_and_mean_losses() -> None:
    unknown: dict[str, object] = dict.fromkeys(STEP_COLUMNS)
    rows = [
        unknown | {"step": step, "tokens_total": 10 * step, "loss": float(step)}
        for step in range(1, 6)
    ]
    rows[1]["held_out"] = 4.0
    found = charts.thinned(rows, 3)
    assert [(row["step"], row["tokens_total"], row["loss"]) for row in found] == [
        (2, 20, 1.5),
        (4, 40, 3.5),
        (5, 50, 5.0),
    ]
    assert [row["held_out"] for row in found] == [4.0, None, None]
    assert charts.thinned(rows, 5) == rows


def test_row_that_covers_several_steps_has_means_of_sums(history: History, tmp_path: Path) -> None:
    write(tmp_path, StepRow(4, 1e9, tokens=400, exchange_ms=10, tokens_total=400, covers=4))
    (row,) = history.steps(0)
    assert (row["tokens"], row["exchange_ms"], row["tokens_total"]) == (100, 2, 400)


def test_throughput_is_tokens_by_time(history: History, tmp_path: Path) -> None:
    write(
        tmp_path,
        *(StepRow(step, 1e9 + 2 * step) for step in (1, 2, 3)),
        *(PeerStepRow(step, PEERS[0], tokens=100 * step) for step in (1, 2, 3)),
        PeerStepRow(3, PEERS[1], tokens=50),
        PeerStepRow(3, PEERS[2], tokens=0),
    )
    assert charts.series(history, 0, 800)["throughput"] == {
        "step": [1, 2, 3],
        "by_peer": {PEERS[0]: [None, 100.0, 150.0], PEERS[1]: [None, 0.0, 25.0]},
    }


def test_long_run_with_many_peers_is_bounded(history: History, tmp_path: Path) -> None:
    write_history(tmp_path / "series.db", RUN, peers=30, steps=400)
    found = charts.series(history, 0, 100, now=NOW)
    throughput, contributors = found["throughput"], found["contributors"]
    assert isinstance(throughput, dict)
    assert isinstance(contributors, dict)
    assert len(throughput["by_peer"]) == charts.THROUGHPUT_PEERS + 1
    assert len(throughput["step"]) <= charts.THROUGHPUT_POINTS
    assert throughput["step"][-1] == 400
    assert charts.by_column(charts.thinned(history.steps(0), 100))["step"][-1] == 400
    assert sum(each["share"] for each in contributors["all"]) == pytest.approx(1.0, abs=1e-4)
    whole = sum(
        row.tokens or 0
        for rows in made_history(30, 400)
        for row in rows
        if isinstance(row, PeerStepRow)
    )
    assert sum(each["tokens"] for each in contributors["all"]) == whole


def test_new_file_of_the_node_is_noticed(history: History, tmp_path: Path) -> None:
    before = history.version()
    write(tmp_path, StepRow(1, 1e9))
    first = history.version()
    assert (history.newest_step(), first > before) == (1, True)
    (tmp_path / "series.db").unlink()
    write(tmp_path, StepRow(9, 1e9))
    assert history.version() > first
    assert history.newest_step() == 9


def test_invalid_file_gives_an_empty_history(history: History, tmp_path: Path) -> None:
    (tmp_path / "series.db").write_bytes(b"no database" * 100)
    assert history.steps(0) == []
    assert history.newest_step() == 0


def test_events_of_a_step_name_its_peers(history: History, tmp_path: Path) -> None:
    write(tmp_path, StepRow(1, 1e9), PeerStepRow(1, PEERS[0], tokens=5, path="direct"))
    (row,) = history.steps(1)
    found = charts.step_event(history, row)
    named = {"name": peer_name(PEERS[0]), "path": "direct"}
    assert found["peers"] == [{"step": 1, "peer": PEERS[0], "tokens": 5, **named}]


@pytest.mark.parametrize(
    ("status", "heard_s_ago", "said"),
    [
        (None, None, "The node has not answered yet."),
        ({"state": "training"}, 12.0, "The node has not answered for 12 s."),
        ({"state": "checking"}, 1.0, "Checking"),
        (
            {"state": "training (inner 1/2)", "outer_step": 3, "outer_steps": 9},
            1.0,
            "Training (inner 1/2): step 3 of 9",
        ),
        (
            {
                "state": "standing by (for x)",
                "state_name": "standing by",
                "outer_step": 3,
                "outer_steps": 9,
                "waits_for": "for x; until 10:00",
            },
            1.0,
            "Standing by: step 3 of 9; for x; until 10:00",
        ),
    ],
)
def test_sentence_says_what_the_node_does(
    status: dict[str, object] | None, heard_s_ago: float | None, said: str
) -> None:
    assert sentence(status, heard_s_ago) == said


def test_state_is_not_sent_again_because_ages_or_round_trips_have_changed() -> None:
    def found(heard_s: int, rtt_ms: float, tokens: int) -> dict[str, object]:
        member = {"peer": "a", "heard_s_ago": heard_s, "rtt_ms": rtt_ms, "tokens": tokens}
        return {"now": NOW + heard_s, "heard_s_ago": 1.0, "status": {"members": [member]}}

    assert content_key(found(1, 12.0, 5)) == content_key(found(2, 12.4, 5))
    assert content_key(found(1, 12.0, 5)) != content_key(found(1, 12.0, 6))

"""A series is written by one thread, stays small with exact sums, and never harms the node."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.errors import LocalProtocolError
from p2ptrain.identity import Identity
from p2ptrain.observe.series import (
    EventRow,
    PeerStepRow,
    SampleRow,
    SeriesReader,
    SeriesRecorder,
    SeriesUnavailable,
    StepRow,
    ToldEventRow,
    ToldSampleRow,
)
from p2ptrain.observe.series.reader import Contribution
from p2ptrain.observe.series.tables import CREATE, create
from p2ptrain.observe.series.thinning import Bounds
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.testing.series_history import history, write_history

RUN = "ab" * 32
LIAR = Identity.from_seed(bytes(32)).peer
SMALL = Bounds(
    whole_steps=16,
    whole_steps_min=8,
    peer_rows_max=10_000,
    events_max=5,
    samples_max=4,
    told_events_max=3,
    told_samples_max=2,
)


def a_step(step: int, **facts: object) -> StepRow:
    return StepRow(step, time=1000.0 + step, tokens=10, tokens_total=10 * step, **facts)  # type: ignore[arg-type]


def test_rows_are_read_back_as_they_were_recorded(tmp_path: Path) -> None:
    rows = next(history(peers=3, steps=20))
    (step,) = (row for row in rows if isinstance(row, StepRow))
    peers = [row for row in rows if isinstance(row, PeerStepRow)]
    said: list[EventRow | SampleRow] = [
        EventRow(5.0, 1, "join", "p", "brave-otter joined the run."),
        SampleRow(1, 0, "p", "Once upon a time\nthere was <b>\u202e"),
    ]
    path = tmp_path / "series.db"
    with SeriesRecorder(path, RUN) as recorder:
        recorder.record(step, *peers, *said)
    with SeriesReader(path) as reader:
        found = (reader.steps(), reader.recent(), reader.events(), reader.samples(), reader.run())
    assert (found[0], found[1]) == ([step], sorted(peers, key=lambda row: str(row)))
    assert [row for _, row in found[2]] == said[:1]
    assert (found[3], found[4]) == ([said[1]], RUN)
    assert path.stat().st_mode & 0o077 == 0


def test_reader_sees_what_a_running_node_has_written(tmp_path: Path) -> None:
    writer = SeriesWriter(tmp_path / "series.db", RUN)
    with SeriesReader(writer.path) as reader:
        before = reader.version()
        writer.write([a_step(1)])
        assert (reader.newest_step(), reader.version() != before) == (1, True)
        seen = reader.version()
        assert reader.version() == seen
    writer.close()


def test_reports_that_arrive_later_complete_the_row_of_a_peer(tmp_path: Path) -> None:
    writer = SeriesWriter(tmp_path / "series.db", RUN)
    writer.write([a_step(1), PeerStepRow(1, "p", tokens=10, contributed=1)])
    writer.write([PeerStepRow(1, "p", train_ms=700, loss=2.5)])
    with SeriesReader(writer.path) as reader:
        assert reader.recent() == [
            PeerStepRow(1, "p", tokens=10, contributed=1, train_ms=700, loss=2.5)
        ]
    writer.close()


def test_old_steps_are_merged_and_sums_stay_exact(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    writer = SeriesWriter(path, RUN, SMALL)
    for step in range(1, 1001):
        peers = [
            PeerStepRow(
                step, peer, tokens=10 * (step % 2), contributed=step % 2, train_ms=3, loss=loss
            )
            for peer, loss in (("p", 2.0), ("q", 4.0))
        ]
        writer.write([a_step(step, loss=float(step), bytes_up=7), *peers])
    writer.thin()
    with SeriesReader(path) as reader:
        steps, peers = reader.steps(), reader.peer_steps(0)
        contributions, recent = reader.contributions(), reader.contributions(since=1991.0)
    writer.close()
    assert [row.step for row in steps[-17:]] == list(range(984, 1001))
    assert len(steps) < 100
    assert len(peers) == 2 * len(steps)
    assert sum(row.covers for row in steps) == 1000
    assert (sum(row.tokens or 0 for row in steps), steps[-1].tokens_total) == (10_000, 10_000)
    assert sum((row.loss or 0) * row.covers for row in steps) == pytest.approx(1000 * 1001 / 2)
    assert sum(row.train_ms or 0 for row in peers) == 6000
    assert {(row.peer, row.loss) for row in peers} == {("p", 2.0), ("q", 4.0)}
    assert contributions == [Contribution("p", 5000, 500), Contribution("q", 5000, 500)]
    assert recent == [Contribution("p", 50, 5), Contribution("q", 50, 5)]


def test_many_peers_have_fewer_whole_steps(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    writer = SeriesWriter(path, RUN, replace(SMALL, peer_rows_max=40))
    for step in range(1, 65):
        writer.write([a_step(step), *(PeerStepRow(step, str(peer), tokens=1) for peer in range(4))])
    with SeriesReader(path) as reader:
        assert [row.step for row in reader.steps()[-9:]] == list(range(56, 65))
        assert reader.steps()[-10].covers > 1
        assert sum(row.tokens or 0 for row in reader.peer_steps(0)) == 4 * 64
    writer.close()


def test_old_events_and_samples_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    writer = SeriesWriter(path, RUN, SMALL)
    for step in range(1, 9):
        told = EventRow(float(step), step, "retry", "", f"Step {step} was repeated.")
        writer.write([a_step(step), told, SampleRow(step, 0, "p", "Once")])
    writer.thin()
    with SeriesReader(path) as reader:
        assert [row.step for _, row in reader.events()] == [8, 7, 6, 5, 4]
        assert [row.step for _, row in reader.events(before=8, limit=2)] == [7, 6]
        assert [row.step for _, row in reader.events_after(7)] == [8]
        assert [row.step for row in reader.samples()] == [1, 3, 5, 7, 8]
    writer.close()


def test_told_events_come_after_our_own_and_displace_nothing(tmp_path: Path) -> None:
    writer = SeriesWriter(tmp_path / "series.db", RUN, SMALL)
    own = [EventRow(50.0, 20, "join", "p", "p joined."), EventRow(51.0, 21, "skip", "", "Skipped.")]
    sample = SampleRow(20, 0, "p", "ours")
    writer.write([*own, sample])
    writer.tell(
        [
            ToldEventRow(19, "join", "p", 49.0, LIAR),  # Our own event, in other words.
            ToldEventRow(21, "skip", "", 51.0, LIAR),
            ToldEventRow(20, "skip", "", 50.5, LIAR),
            ToldEventRow(15, "join", "q", 40.0, LIAR),
            ToldEventRow(16, "join", "q", 41.0, LIAR),  # The same event once more.
            ToldSampleRow(20, 0, "p", "theirs", LIAR),
            ToldSampleRow(10, 0, "p", "first", LIAR),
        ]
    )
    writer.tell([ToldSampleRow(10, 0, "q", "second", LIAR)])
    for step in range(100, 400):  # There is no room for a flood.
        writer.tell([ToldEventRow(step, "lost", f"peer {step}", 9.0, LIAR)])
        writer.tell([ToldSampleRow(step, 0, "p", "x" * 1000, LIAR)])
    with SeriesReader(writer.path) as reader:
        events, after = reader.events(), reader.events(before=-1, limit=1)
        assert [row for _, row in events[:2]] == own[::-1]
        assert [(number, row.step, row.kind) for number, row in events[2:]] == [
            (-1, 20, "skip"),
            (-2, 15, "join"),
            (-3, 100, "lost"),
        ]
        assert after == events[3:4]
        assert reader.events(limit=2) == events[:2]
        assert [row for _, row in reader.events_after(0)] == own, "nobody is told old events anew"
        assert reader.own_events(20, 21, 9) == own[::-1]
        assert reader.samples() == reader.own_samples(1, 99, 9) == [sample]
        assert [(row.step, row.text) for row in reader.told_samples()] == [
            (10, "first"),
            (100, "x" * 1000),
        ]
    writer.close()


def test_series_of_an_earlier_version_can_be_read_and_gets_the_new_tables(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    with closing(sqlite3.connect(path)) as connection:
        create(connection, RUN)
        connection.execute("INSERT INTO events VALUES (7, 9.0, 1, 'skip', '', 'Skipped.')")
        connection.commit()
    own = [(7, EventRow(9.0, 1, "skip", "", "Skipped."))]
    with SeriesReader(path) as reader:
        assert (reader.events(), reader.told_samples()) == (own, [])
    writer = SeriesWriter(path, RUN)
    writer.tell([ToldSampleRow(10, 0, "p", "once", LIAR)])
    with SeriesReader(path) as reader:
        assert (reader.events(), len(reader.told_samples())) == (own, 1)
    writer.close()
    assert writer.notice == ""


def test_charts_get_as_many_points_as_they_ask_for(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    writer = SeriesWriter(path, RUN)
    writer.write([replace(a_step(step, loss=float(step)), time=None) for step in range(1, 10)])
    writer.write([a_step(10, loss=10.0)])
    with SeriesReader(path) as reader:
        points = reader.steps(points=3)
        assert [(row.step, row.tokens_total, row.loss) for row in points] == [
            (4, 40, 2.5),
            (8, 80, 6.5),
            (10, 100, 9.5),
        ]
        assert [row.time for row in points] == [1010.0, 1010.0, 1010.0]
        assert len(reader.steps(8)) == 3
    writer.close()


def test_rows_told_by_members_fill_gaps_only(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    writer = SeriesWriter(path, RUN)
    writer.write([StepRow(10, tokens=5), PeerStepRow(10, "p", tokens=5, contributed=1)])
    told = {"told_by": "liar"}
    assert writer.fill(
        StepRow(10, time=3.0, tokens=99, **told),  # type: ignore[arg-type]
        [PeerStepRow(10, "p", tokens=99, train_ms=8, told_by="liar")],
    )
    assert writer.fill(StepRow(8, time=1.0, covers=4, tokens=20, told_by="liar"), [])
    assert not writer.fill(StepRow(6, time=1.0, tokens=20, told_by="liar"), [])
    assert not writer.fill(StepRow(11, time=1.0, covers=2, tokens=20, told_by="liar"), [])
    with SeriesReader(path) as reader:
        assert reader.steps() == [
            StepRow(8, time=1.0, covers=4, tokens=20, told_by="liar"),
            StepRow(10, time=3.0, tokens=5, told_by="liar"),
        ]
        assert reader.recent() == [
            PeerStepRow(10, "p", tokens=5, contributed=1, train_ms=8, told_by="liar")
        ]
    writer.close()


def test_merged_row_of_a_member_replaces_rows_from_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    writer = SeriesWriter(path, RUN)
    for step in (1, 2, 3, 4):
        copied = StepRow(step, tokens=5, tokens_total=5 * step)
        writer.write([copied, PeerStepRow(step, "p", tokens=5, contributed=1)])
    merged = StepRow(3, time=9.0, covers=3, tokens=15, told_by="member")
    theirs = PeerStepRow(3, "p", tokens=15, contributed=3, train_ms=8, told_by="member")
    assert writer.fill(merged, [theirs])
    with SeriesReader(path) as reader:
        assert reader.steps_between(1, 4) == [
            replace(merged, tokens_total=15),
            StepRow(4, tokens=5, tokens_total=20),
        ]
        assert reader.peer_steps(0)[0] == theirs
        assert reader.contributions() == [Contribution("p", 20, 4)]
    writer.close()


def damaged(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\x17" * 5000)


def of_other_schema(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(CREATE)
        connection.execute("INSERT INTO meta VALUES ('schema', '77')")


def of_other_run(path: Path) -> None:
    SeriesWriter(path, "cd" * 32).close()


def of_other_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE meta(key TEXT, value TEXT)")


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (damaged, "it is damaged"),
        (of_other_schema, "it has schema 77, and this version uses schema 1"),
        (of_other_run, "it belongs to another run"),
        (of_other_program, "it has schema None, and this version uses schema 1"),
    ],
)
def test_unusable_file_is_put_aside_and_a_new_one_begins(
    tmp_path: Path, spoil: object, fault: str
) -> None:
    path = tmp_path / "series.db"
    assert callable(spoil)
    spoil(path)
    before = path.read_bytes()
    with SeriesRecorder(path, RUN) as recorder:
        recorder.record(a_step(1))
    assert recorder.notice == f"series.db was renamed to series.db.aside: {fault}"
    assert (tmp_path / "series.db.aside").read_bytes() == before
    with SeriesReader(path) as reader:
        assert reader.newest_step() == 1


def test_reader_says_why_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    said = {}
    for spoil in (None, damaged, of_other_schema):
        path.unlink(missing_ok=True)
        if spoil is not None:
            spoil(path)
        with pytest.raises(SeriesUnavailable) as caught:
            SeriesReader(path)
        said[spoil] = caught.value.what
    assert said == {
        None: "there is no series yet; the node writes it from its next step",
        damaged: "series.db cannot be read: file is not a database",
        of_other_schema: (
            "series.db cannot be read: it has schema 77, and this version uses schema 1"
        ),
    }


def test_file_with_damaged_pages_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    with SeriesRecorder(path, RUN) as recorder:
        recorder.record(a_step(1))
        recorder.close()
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\x99" * (len(content) - 4096)
    path.write_bytes(content)
    with SeriesRecorder(path, RUN) as recorder:
        recorder.record(a_step(2))
    assert recorder.notice.startswith("series.db was renamed to series.db.aside")
    with SeriesReader(path) as reader:
        assert [row.step for row in reader.steps()] == [2]


def test_lost_disk_is_reported_and_recording_resumes_later(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "series.db"
    with SeriesRecorder(path, RUN) as recorder:
        recorder.record(a_step(1))
        recorder.flush()
        lost = (recorder.lost, recorder.trouble)
        path.parent.mkdir()
        recorder.record(a_step(2))
        recorder.flush()
        assert lost == (1, "No such file or directory")
        assert (recorder.lost, recorder.trouble) == (1, "")
        path.unlink()
        recorder.record(a_step(3))
        recorder.record(a_step(4))
    with SeriesReader(path) as reader:
        assert [row.step for row in reader.steps()] == [4]


def test_recording_never_waits_for_a_locked_file(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    SeriesWriter(path, RUN).close()
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    recorder = SeriesRecorder(path, RUN, waiting_max=3)
    for step in range(10):
        recorder.record(a_step(step + 1))
    assert recorder.lost >= 6
    assert recorder.trouble == "the disk is too slow"
    recorder.close(at_most_s=0.01)
    locker.close()
    recorder.close()
    assert "series" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "make",
    [
        lambda: StepRow(1, loss=float("nan")),
        lambda: StepRow(1, tokens=-1),
        lambda: StepRow(1 << 60),
        lambda: PeerStepRow(1, "p" * 65),
        lambda: PeerStepRow(1, "p", loss=1e31),
        lambda: EventRow(0.0, 1, "join", "p", "x" * 4001),
        lambda: EventRow(0.0, 1, "other", "p", "x"),
        lambda: SampleRow(1, 0, "p", b"bytes"),  # type: ignore[arg-type]
    ],
)
def test_row_out_of_bounds_cannot_exist(make: object) -> None:
    assert callable(make)
    with pytest.raises(LocalProtocolError):
        make()


def test_long_history_is_made_in_seconds_and_is_small(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    write_history(path, RUN)
    with SeriesReader(path) as reader:
        steps, contributions = reader.steps(), reader.contributions()
        kinds = {row.kind for _, row in reader.events(limit=1000)}
        samples = reader.samples()
    assert (len(steps), steps[-1].step, len(contributions)) == (600, 600, 24)
    assert sum(each.tokens for each in contributions) == steps[-1].tokens_total
    assert {"join", "leave", "lost", "skip", "retry", "validation", "end"} <= kinds
    assert len(samples) == 3 * 30
    assert path.stat().st_size < 4e6

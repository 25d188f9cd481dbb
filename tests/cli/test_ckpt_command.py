"""`p2ptrain ckpt`, run on a home (a node's folder) that contains a run's history."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.observe.series import StepRow
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.store import LocalDisk, Pins, Store
from tests.cli.conftest import Command, Outcome, fake_node
from tests.cli.histories import WrittenHistory
from tests.cli.watching.made import NOW, made_status

STEPS = 5


@pytest.fixture
def ckpt(p2ptrain: Command, home: Home) -> Command:
    def run(*words: object) -> Outcome:
        return p2ptrain("ckpt", *words, "--home", home.root)

    return run


def chunk_of(home: Home, history: WrittenHistory, step: int) -> Path:
    with Store(home.store) as store:
        return store.chunk_path(store.manifest(history.snapshots[step]).chunks[1])


def test_certified_snapshots_are_listed_with_the_number_of_chunks_held(
    ckpt: Command, home: Home, history: WrittenHistory
) -> None:
    chunk_of(home, history, 2).unlink()
    listed = ckpt("ls", "--json").json
    assert (listed["run"], listed["step"]) == (history.run.id, STEPS)
    assert [(row["step"], row["height"], row["whole"]) for row in listed["snapshots"]] == [
        (0, 0, True),
        (2, 6, False),
        (4, 10, True),
    ]
    partly = listed["snapshots"][1]
    assert partly["digest"] == history.snapshots[2]
    assert partly["chunks_held"] == partly["chunks"] - 1
    assert partly["updates_held_to"] == STEPS
    shown = ckpt("ls").out.splitlines()
    assert [line.split()[:2] for line in shown] == [["step", step] for step in ("4", "2", "0")]
    assert shown[0].endswith("entry    10, 1 vote")
    assert f"{partly['chunks_held']} of {partly['chunks']} chunks" in shown[1]
    assert "the run's manifest" in shown[2]
    newest = ckpt("ls", "--last", 1)
    assert (newest.out.splitlines(), newest.err) == (shown[:1], "")
    assert ckpt("ls", "--last", 2, "--json").json["snapshots"] == listed["snapshots"][1:]


def test_date_loss_and_copies_are_shown_where_they_are_known(
    ckpt: Command, home: Home, history: WrittenHistory
) -> None:
    writer = SeriesWriter(home.root / "series.db", history.run.id)
    writer.write([StepRow(4, time=NOW, held_out=2.3604)])
    writer.close()
    newest = {"step": 4, "digest": history.snapshots[4], "copies": 3}
    reply = json.dumps(replace(made_status(), snapshots=(newest,)).to_json()).encode() + b"\n"
    with fake_node(home.root, reply, reply):
        shown = ckpt("ls", "--here", "--last", 10).out.splitlines()
        row = ckpt("ls", "--json").json["snapshots"][-1]
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(NOW))
    assert shown[0].startswith(f"step     4  {date}  loss 2.360   3 copies   ")
    assert shown[1].split()[:3] == ["step", "2", f"{history.snapshots[2][:12]}…"]
    assert (row["ended"], row["loss"], row["copies"]) == (NOW, 2.3604, 3)


def test_removed_snapshot_is_listed_as_not_here(
    ckpt: Command, home: Home, history: WrittenHistory
) -> None:
    with Store(home.store) as store:
        store.chunk_path(history.snapshots[2]).unlink()
        store.chunk_path(history.updates[3]).unlink()
    rows = ckpt("ls", "--json").json["snapshots"]
    assert [row["chunks"] is None for row in rows] == [False, True, False]
    assert [row["updates_held_to"] for row in rows] == [3, 3, 5]
    shown, whole = ckpt("ls"), ckpt("ls", "--all")
    assert [line.split()[1] for line in shown.out.splitlines()] == ["4", "0"]
    assert "1 snapshot is not here: --all lists them too" in shown.err
    assert [line.split()[1] for line in whole.out.splitlines()] == ["4", "2", "0"]
    assert "not here" in whole.out


def test_snapshot_is_verified_against_its_certificate(
    ckpt: Command, home: Home, history: WrittenHistory
) -> None:
    with sole_use(home):
        done = ckpt("verify", "--json")
    assert done.code == 0
    assert (done.json["step"], done.json["height"], done.json["good"]) == (4, 10, True)
    assert done.json["digest"] == history.snapshots[4]
    said = ckpt("verify", history.snapshots[2][:10]).out
    assert said.startswith("the snapshot of outer step 2 is intact: all ")


def test_corrupt_chunk_of_a_snapshot_is_reported(
    ckpt: Command, home: Home, history: WrittenHistory
) -> None:
    path = chunk_of(home, history, 4)
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    done = ckpt("verify")
    assert (done.code, "CKPT-HASH" in done.err) == (4, True)
    assert path.parent.name + path.name in done.err
    assert ckpt("verify", "2").code == 0


def test_error_for_a_missing_chunk_shows_the_command_to_fetch_it(
    ckpt: Command, home: Home, history: WrittenHistory
) -> None:
    chunk_of(home, history, 4).unlink()
    done = ckpt("verify")
    assert (done.code, "CKPT-MISSING" in done.err) == (4, True)
    assert f"p2ptrain ckpt fetch 4 --home {home.root}" in done.err


def test_snapshot_is_pinned_by_its_outer_step(
    ckpt: Command, home: Home, history: WrittenHistory
) -> None:
    assert ckpt("pin", "2").out == (
        f"the snapshot of outer step 2 is pinned: {history.snapshots[2]}\n"
    )
    assert "already pinned" in ckpt("pin", "2").out
    assert Pins(home.store, LocalDisk()).load() == {history.snapshots[2]}
    assert [row["pinned"] for row in ckpt("ls", "--json").json["snapshots"]] == [False, True, False]
    assert ckpt("ls").out.splitlines()[1].endswith("pinned")


@pytest.mark.parametrize("word", ["3", "9999", "latest", "ab", "f" * 64])
def test_unknown_snapshot_name_is_answered_with_the_known_steps(
    ckpt: Command, history: WrittenHistory, word: str
) -> None:
    done = ckpt("pin", word)
    assert done.code == 2
    assert "there are certified snapshots of outer steps 0, 2, 4" in done.err


def test_fetch_while_a_node_runs_suggests_what_to_do_instead(
    ckpt: Command, home: Home, history: WrittenHistory
) -> None:
    with sole_use(home):
        done = ckpt("fetch")
    assert done.code == 8
    assert f"p2ptrain ckpt ls --home {home.root} lists its snapshots" in done.err

"""`p2ptrain store`, on the home of an organiser that has just published a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.cli.commands import store as store_command
from p2ptrain.cli.homes import run_of
from p2ptrain.cli.main import main
from p2ptrain.ids import Digest
from p2ptrain.ledger.paxos.acceptor import Acceptor
from p2ptrain.run import DataIndex, Run
from p2ptrain.store import RecordLog, Store, StoreReader, digest_of
from p2ptrain.testing.published import BLOCKS, policy, publish
from tests.cli.conftest import fake_node
from tests.cli.histories import make_history
from tests.process_limits import no_file_grows


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    publish(home)
    return home


def run(capsys: pytest.CaptureFixture[str], home: Home, *words: str) -> tuple[int, str, str]:
    code = main(["store", *words, "--home", str(home.root)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_du_shows_the_size_of_each_kind(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, home, "du", "--json")
    told = json.loads(out)
    assert code == 0
    assert {kind: each["blobs"] for kind, each in told["kinds"].items()} == {
        "data": 0,
        "index": 1,
        "snapshot": 1,
        "tokenizer": 1,
    }
    assert told["kinds"]["data"]["chunks"] == BLOCKS + 2
    assert told["bytes"] == sum(each["bytes"] for each in told["kinds"].values())
    code, out, _ = run(capsys, home, "du")
    assert code == 0
    assert out.splitlines()[-1].startswith("total")


def test_du_and_check_work_while_a_node_runs(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    with sole_use(home), Store(home.store):
        assert run(capsys, home, "du")[0] == 0
        code, out, _ = run(capsys, home, "check")
    assert code == 0
    assert out.startswith("all ")


def test_check_reports_damaged_chunks(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(home.store) as store:
        victim = store.put_chunk(b"sound")
        store.chunk_path(victim).write_bytes(b"rotten")
    code, _, err = run(capsys, home, "check")
    assert code == 4
    assert "CKPT-HASH" in err
    assert victim in err


def damaged(home: Home) -> Digest:
    with Store(home.store) as store:
        victim = store.put_chunk(b"sound")
        store.chunk_path(victim).write_bytes(b"rotten")
    return victim


def test_intact_store_needs_no_repair(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, home, "check", "--repair", "--json")
    assert (code, json.loads(out)["damaged"], json.loads(out)["repaired"]) == (0, [], [])


def test_running_node_is_asked_to_repair_the_store(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = damaged(home)
    with Store(home.store) as store:
        path = store.chunk_path(victim)

    def mend() -> None:
        path.write_bytes(b"sound")

    answer = b'{"asked": true}\n'
    with sole_use(home), fake_node(home.root, answer, first=mend) as asked:
        code, out, err = run(capsys, home, "check", "--repair")
    assert (code, asked) == (0, [{"command": "scrub"}])
    assert "repaired from peers" in out
    assert "the node that runs in this home repairs them" in err


def test_damage_that_no_peer_repairs_stays_an_error(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = damaged(home)
    monkeypatch.setattr(store_command, "REPAIR_S", 0.0)
    with sole_use(home), fake_node(home.root, b'{"asked": true}\n'):
        code, _, err = run(capsys, home, "check", "--repair")
    assert code == 4
    assert "1 of" in err
    assert "if no peer of the run was reached, try again with --bootstrap" in err
    assert victim in err


def test_gc_removes_what_the_run_does_not_need(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(home.store) as store:
        garbage = store.put_chunk(b"garbage")
        pinned = store.put_chunk(b"pinned by the user")
    assert run(capsys, home, "pin", pinned)[1] == "pinned\n"
    assert run(capsys, home, "pin", pinned)[1] == "it is already pinned\n"
    code, out, _ = run(capsys, home, "gc", "--json")
    assert (code, json.loads(out)["chunks"]) == (0, 1)
    with Store(home.store) as store:
        assert not store.has_chunk(garbage)
        assert store.has_chunk(pinned)
    assert run(capsys, home, "unpin", pinned)[0] == 0
    assert run(capsys, home, "gc")[1].startswith("removed ")
    assert run(capsys, home, "unpin", pinned)[1] == "it was not pinned\n"
    with Store(home.store) as store:
        assert not store.has_chunk(pinned)


def test_gc_removes_the_older_snapshot_if_no_data_were_fetched(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `ckpt fetch`, a home contains the chain, snapshots, updates and the tokenizer, but not
    the index of the data."""
    history = make_history(home, publish_alone(home), 5)
    remove_the_data(home, history.run)
    code, out, err = run(capsys, home, "gc", "--keep-snapshots", "1", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["chunks"] > 0
    with Store(home.store) as store:
        assert store.holds_blob(history.snapshots[4])
        assert store.holds_blob(history.run.manifest.tokenizer)
        assert not store.has_chunk(history.snapshots[2])


def test_gc_in_a_seeds_home_without_its_index_removes_nothing(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    index = run_of(home).manifest.data.index
    with Store(home.store) as store:
        before = set(StoreReader(home.store).listed())
        store.chunk_path(index).unlink()
    code, _, err = run(capsys, home, "gc", "--seed")
    assert (code, "CKPT-MISSING" in err) == (4, True)
    assert {digest for digest, _ in before - set(StoreReader(home.store).listed())} == {index}


def publish_alone(home: Home) -> Run:
    """Replace the published run in `home` by one with a single participant."""
    shutil.rmtree(home.store)
    return publish(home, rules=policy(participants_min=1, snapshot_every=2), steps=99)


def remove_the_data(home: Home, of: Run) -> None:
    spec = of.manifest.data
    with Store(home.store) as store:
        data = DataIndex.from_bytes(
            store.read_blob(spec.index),
            train_blocks=spec.train_blocks,
            validation_blocks=spec.validation_blocks,
        )
        pieces = (spec.index, *store.manifest(spec.index).chunks)
        for digest in (*data.train, *data.validation, *pieces):
            store.chunk_path(digest).unlink()


def test_gc_makes_room_on_a_full_disk(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(home.store) as store:
        garbage = store.put_chunk(b"garbage")
    line, votes = run_of(home).id, RecordLog(home.votes)
    RecordLog(home.ledger)
    votes.append([Acceptor(line, 1).promise(round_) for round_ in (1, 2)])
    with no_file_grows():
        code, out, err = run(capsys, home, "gc", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["chunks"] == 1
    assert len(list(RecordLog(home.votes))) == 2
    with Store(home.store) as store:
        assert not store.has_chunk(garbage)


def test_gc_says_what_to_do_about_a_damaged_pin(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = damaged(home)
    run(capsys, home, "pin", victim)
    code, _, err = run(capsys, home, "gc")
    assert code == 4
    assert f"p2ptrain store unpin {victim} --home {home.root}" in " ".join(err.split())
    run(capsys, home, "unpin", victim)
    assert run(capsys, home, "gc")[0] == 0


def test_gc_is_refused_while_a_node_runs(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with sole_use(home):
        code, _, err = run(capsys, home, "gc")
    assert code == 8
    assert "already running" in err


@pytest.mark.parametrize(
    ("words", "what", "do"),
    [
        (["pin", "snapshot"], "'snapshot' is not a digest", "give 64 hexadecimal characters"),
        (["unpin", "a" * 63], f"'{'a' * 63}' is not a digest", "give 64 hexadecimal"),
        (
            ["gc", "--keep-snapshots", "all"],
            "--keep-snapshots all leaves nothing to remove",
            "give a number of snapshots",
        ),
        (["gc", "--keep-snapshots", "-1"], "'-1' is not a number of snapshots", "write a number"),
        (["gc", "--data-cache", "8"], "'8' is not a size", "write a number and a unit: 8GB, 500MB"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_invalid_argument_is_answered_with_the_valid_values(
    home: Home, capsys: pytest.CaptureFixture[str], words: list[str], what: str, do: str
) -> None:
    code, out, err = run(capsys, home, *words)
    assert (code, out) == (2, "")
    told = " ".join(err.split())
    assert told.startswith(f"error[CONFIG] {what}")
    assert do in told


@pytest.mark.parametrize("words", ["du", "check", "check --repair", "gc", f"pin {'a' * 64}"])
@pytest.mark.parametrize("exists", [True, False])
def test_folder_that_is_not_a_home_is_not_reported_as_intact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, exists: bool
) -> None:
    mistyped = tmp_path / "hmoe"
    if exists:
        mistyped.mkdir()
    code = main(["store", *words.split(), "--home", str(mistyped)])
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert "RUN-NONE" in shown.err
    assert not (mistyped / "store").exists()
    if words in ("du", "check"):
        assert mistyped.exists() == exists


def test_blob_can_be_pinned_before_it_is_stored(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, home, "pin", digest_of(b"later"))[0] == 0
    assert run(capsys, home, "du")[1].rstrip().endswith("1 pinned")

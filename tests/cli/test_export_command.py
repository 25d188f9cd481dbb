"""`p2ptrain export`, run on a home (a node's folder) that contains a run's history."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.archive.update_format import published_formats
from p2ptrain.cli.outside import Outside
from p2ptrain.errors import P2PTrainError
from p2ptrain.export import parity
from p2ptrain.extras import install
from p2ptrain.identity import load_or_create
from p2ptrain.ids import Digest
from p2ptrain.names import label
from p2ptrain.run.outside_facts import Public
from p2ptrain.state import OuterState, snapshot_meta
from p2ptrain.store import Store, StoreReader
from p2ptrain.testing.published import MODEL, policy, publish
from p2ptrain.trainer.formats.shapes import layout_of
from tests.cli.conftest import Command, Outcome
from tests.cli.histories import WrittenHistory, make_history

NUMEL = layout_of(MODEL).numel


@pytest.fixture
def export(p2ptrain: Command, home: Home, tmp_path: Path) -> Command:
    def run(*words: object) -> Outcome:
        place = ("--home", home.root, "--no-parity")
        return p2ptrain("export", "--to", "hf", tmp_path / "out", *words, *place)

    return run


def theta_of(home: Home, snapshot: Digest) -> bytes:
    return StoreReader(home.store).read_blob(snapshot)[: 4 * NUMEL]


def test_newest_certified_snapshot_is_exported_while_a_node_runs(
    export: Command, home: Home, history: WrittenHistory, tmp_path: Path
) -> None:
    with sole_use(home):
        done = export("--json")
    assert done.code == 0
    newest = history.snapshots[4]
    assert done.json["theta"] == blake3(theta_of(home, newest)).hexdigest()
    assert (done.json["standing"], done.json["snapshot"]) == ("certified", newest)
    assert (done.json["step"], done.json["entry_height"]) == (4, 10)
    assert done.json["tokens"] == 4 * 2, (
        "in a history made for tests, the participant trains on one token per block"
    )
    assert done.json["ledger_head"] == history.chain[-1].entry.digest
    assert "--snapshot head" in done.err
    written = json.loads((tmp_path / "out" / "p2ptrain.json").read_text())
    assert written == {name: done.json[name] for name in written}


def test_contributors_are_named_if_the_run_and_the_user_want_it(
    export: Command, p2ptrain: Command, home: Home, history: WrittenHistory, tmp_path: Path
) -> None:
    refused = export("--names")
    assert (refused.code, "does not let strangers see the names" in refused.err) == (2, True)
    named, out = Home(tmp_path / "named"), tmp_path / "named-out"
    public = Public(telemetry=True, weights=True, names=True)
    rules = policy(participants_min=1, snapshot_every=2)
    make_history(named, publish(named, rules=rules, public=public, steps=99), 5)
    words = ("export", "--to", "hf", out, "--names", "--no-parity", "--home", named.root)
    me = load_or_create(named.identity).peer
    assert p2ptrain(*words, "--json").json["contributors"] == [[me, 8]], "θ of outer step 4"
    assert f"| {label(me)} | 8 | 100.0% |" in (out / "README.md").read_text()
    assert export().code == 0
    assert "## Contributors" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("word", ["genesis", "0", "2", "digest"])
def test_snapshot_is_chosen_by_step_or_digest(
    export: Command, home: Home, history: WrittenHistory, word: str
) -> None:
    digest = history.snapshots[2] if word in ("2", "digest") else history.run.manifest.genesis
    done = export("--snapshot", digest[:12] if word == "digest" else word, "--json")
    assert (done.json["snapshot"], done.json["standing"]) == (digest, "certified")
    assert done.json["theta"] == blake3(theta_of(home, digest)).hexdigest()


def test_head_is_the_newest_snapshot_plus_the_updates_after_it(
    export: Command, home: Home, history: WrittenHistory
) -> None:
    manifest = history.run.manifest
    state, store = OuterState(NUMEL), StoreReader(home.store)
    state.load_snapshot(store, history.snapshots[4])
    form = replace(published_formats(history.run.id, manifest)[0], step=4)
    payload = form.read_payload(store, history.updates[4])
    state.apply(payload, manifest.outer.lr, manifest.outer.momentum, form.codec)
    done = export("--snapshot", "head", "--json")
    assert done.json["theta"] == blake3(state.theta.tobytes()).hexdigest()
    assert (done.json["step"], done.json["updates"], done.json["updates_after"]) == (5, 1, 0)
    assert (done.json["standing"], done.json["snapshot_step"]) == ("replayed", 4)
    state.close()


def test_head_without_its_update_fails_instead_of_using_an_older_state(
    export: Command, home: Home, history: WrittenHistory, tmp_path: Path
) -> None:
    with Store(home.store) as store:
        store.chunk_path(history.updates[4]).unlink()
    done = export("--snapshot", "head")
    assert done.code == 75
    assert (
        "[AUDIT-PARTIAL] cannot replay the ledger to outer step 5, the newest one: this home does "
        "not contain the update of outer step 4" in done.err
    )
    assert history.updates[4] in done.err
    assert "ckpt fetch" in done.err
    assert not (tmp_path / "out").exists()
    assert export("--snapshot", "newest", "--json").json["updates_after"] == 1


def test_uncertified_snapshot_needs_a_full_digest_and_is_marked(
    export: Command, home: Home, history: WrittenHistory, tmp_path: Path
) -> None:
    state = OuterState(NUMEL)
    state.theta[:] = np.float32(0.5)
    with Store(home.store, chunk_bytes=4096) as store:
        meta = snapshot_meta(history.run.id, 5, history.run.manifest.layout)
        digest = state.write_snapshot(store, meta)
    state.close()
    assert export("--snapshot", digest[:20]).code == 2
    done = export("--snapshot", digest)
    assert done.code == 0
    assert done.out.startswith("NOT CERTIFIED: ")
    assert "no peer: the weights are not certified" in done.out
    assert "NOT CERTIFIED" in (tmp_path / "out" / "README.md").read_text()


def test_export_that_finds_a_damaged_chunk_leaves_no_folder(
    export: Command, home: Home, history: WrittenHistory, tmp_path: Path
) -> None:
    with Store(home.store) as store:
        path = store.chunk_path(store.manifest(history.snapshots[4]).chunks[0])
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    for word in ("newest", "head"):
        done = export("--snapshot", word)
        assert (done.code, "CKPT-HASH" in done.err) == (4, True)
    assert [each.name for each in tmp_path.iterdir()] == ["home"]


def test_home_without_a_complete_snapshot_says_how_to_fetch_one(
    export: Command, home: Home, history: WrittenHistory
) -> None:
    with Store(home.store) as store:
        for digest in (history.run.manifest.genesis, *history.snapshots.values()):
            store.chunk_path(digest).unlink(missing_ok=True)
    for word in ("newest", "head"):
        done = export("--snapshot", word)
        assert (done.code, "CKPT-MISSING" in done.err) == (4, True)
        assert "p2ptrain ckpt fetch" in done.err


@pytest.mark.parametrize(
    "words",
    [
        "export OUT",
        "run show",
        "allow list",
        "ledger export OUT",
        "ledger evidence",
        "ledger trained",
    ],
)
def test_read_only_command_creates_nothing_in_a_mistyped_home(
    p2ptrain: Command, tmp_path: Path, words: str
) -> None:
    asked = words.replace("OUT", str(tmp_path / "out")).split()
    done = p2ptrain(*asked, "--home", tmp_path / "hmoe")
    assert (done.code, "RUN-NONE" in done.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_unknown_snapshot_name_is_answered_with_the_known_steps(
    export: Command, history: WrittenHistory
) -> None:
    for word in ("3", "f" * 64, history.updates[4]):
        done = export("--snapshot", word)
        assert done.code == 2
        assert "there are certified snapshots of outer steps 0, 2, 4" in done.err


def test_existing_folder_is_not_overwritten(
    export: Command, history: WrittenHistory, tmp_path: Path
) -> None:
    assert export().code == 0
    again = export()
    assert (again.code, "EXPORT-EXISTS" in again.err) == (2, True)
    assert export("--force", "--dtype", "bf16").code == 0
    (tmp_path / "out" / "p2ptrain.json").unlink()
    assert export("--force").code == 2


def test_export_that_transformers_reads_differently_is_refused(
    p2ptrain: Command,
    home: Home,
    history: WrittenHistory,
    tmp_path: Path,
) -> None:
    """A script that reports a chosen difference stands in for the program that compares the
    logits."""
    words = ("export", "--to", "hf", tmp_path / "out", "--home", home.root)

    def report(difference: float) -> None:
        facts = {"tokens": 8, "difference": difference, "largest": 2.0, "transformers": "5.0"}
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n")
        program.chmod(0o755)

    around = Outside(is_installed=lambda package: True, python=str(tmp_path / "python"))
    report(0.5)
    done = p2ptrain(*words, around=around)
    assert (done.code, "EXPORT-PARITY" in done.err) == (1, True)
    assert not (tmp_path / "out").exists()
    report(1e-6)
    done = p2ptrain(*words, around=around)
    assert done.code == 0
    assert "transformers 5.0 computes the same logits" in done.out
    (tmp_path / "out").rename(tmp_path / "good")
    report(float("nan"))
    done = p2ptrain(*words, around=around)
    assert (done.code, "error[NAN]" in done.err) == (4, True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(P2PTrainError):
        parity.compare(tmp_path / "good", "/bin/false")


@pytest.mark.parametrize(
    ("installed", "parameters_max", "words", "why"),
    [
        (False, 10**9, (), f"not installed ({install('transformers>=4.56')})"),
        (
            True,
            NUMEL // 2,
            (),
            "the comparison of 0.0 billion parameters takes a long time; pass --parity to compare "
            "them anyway",
        ),
        (False, 10**9, ("--no-parity",), "--no-parity"),
    ],
)
def test_export_without_a_comparison_says_so_and_why(
    p2ptrain: Command,
    home: Home,
    history: WrittenHistory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    parameters_max: int,
    words: tuple[str, ...],
    why: str,
) -> None:
    around = Outside(is_installed=lambda package: installed)
    monkeypatch.setattr(parity, "PARAMETERS_MAX", parameters_max)
    done = p2ptrain(
        "export", "--to", "hf", tmp_path / "out", "--home", home.root, *words, around=around
    )
    assert done.code == 0
    told = [line for line in done.out.splitlines() if "compared" in line]
    assert told == [f"the logits were not compared with transformers: {why}"]


def test_leftovers_of_a_killed_export_are_removed_and_reported(
    export: Command, history: WrittenHistory, tmp_path: Path
) -> None:
    left = tmp_path / ".out.partial-12345"
    left.mkdir()
    done = export()
    assert (done.code, left.exists()) == (0, False)
    assert f"removed {left}, the remains of an export that was killed" in done.err

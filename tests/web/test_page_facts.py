"""The page names the run, its certified snapshots and an invitation, from the files of the home."""

from __future__ import annotations

import json
from pathlib import Path

import trio

from p2ptrain.archive.chain_log import entry_bytes
from p2ptrain.archive.home import Home
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Certificate, Certified, Commit, Entry, SnapshotRef
from p2ptrain.names import peer_name
from p2ptrain.observe.series.rows import StepRow
from p2ptrain.store import digest_of
from p2ptrain.store.record_log import RecordLog
from p2ptrain.testing.published import publish
from p2ptrain.web.facts import snapshots_in
from tests.web.serving import PEERS, served, status

SNAPSHOT, OTHER = digest_of(b"snapshot"), digest_of(b"other")


def certified(height: int, value: Commit) -> Certified:
    entry = Entry(height, Digest(digest_of(b"before")), value)
    votes = tuple((peer, bytes(64)) for peer in sorted(PEERS[:2]))
    return Certified(entry, Certificate(height, 0, entry.digest, votes))


def write_ledger(path: Path) -> None:
    update = Digest(digest_of(b"update"))
    plain = certified(1, Commit(0, 0, update))
    named = [
        certified(step, Commit(step, 0, update, SnapshotRef(step, Digest(digest)), update))
        for step, digest in ((2, OTHER), (4, SNAPSHOT))
    ]
    RecordLog(path).append([entry_bytes(each) for each in (plain, *named)])


def test_snapshots_are_read_from_the_ledger_newest_first(tmp_path: Path) -> None:
    write_ledger(tmp_path / "ledger.log")
    signers = sorted(peer_name(each) for each in PEERS[:2])
    assert snapshots_in(tmp_path / "ledger.log") == [
        {"step": 4, "digest": SNAPSHOT, "signers": signers},
        {"step": 2, "digest": OTHER, "signers": signers},
    ]


def test_damaged_or_missing_ledger_has_no_snapshots(tmp_path: Path) -> None:
    (tmp_path / "damaged.log").write_bytes(b"not a ledger")
    assert snapshots_in(tmp_path / "damaged.log") == []
    assert snapshots_in(tmp_path / "missing.log") == []


async def test_page_names_the_run_and_its_snapshots(nursery: trio.Nursery, tmp_path: Path) -> None:
    home = Home(tmp_path)
    run = publish(home, allowed=())
    write_ledger(home.ledger)
    async with served(tmp_path, nursery) as page:
        page.writer.write([StepRow(3, 1e9, tokens_total=900, loss=2.5, held_out=2.25)])
        page.node.says = status(run=run.id, snapshot_step=4)
        state = json.loads((await page.ask("/api/v1/state"))[2])
    newest, older = state["snapshots"]
    assert (newest["step"], newest["digest"], newest["copies"]) == (4, SNAPSHOT, None)
    assert (newest["tokens"], newest["loss"]) == (900, 2.25)
    assert older["step"] == 2
    assert state["invite"] == "p2ptrain:1abc"
    assert (state["run"]["id"], state["run"]["name"]) == (run.id, run.manifest.name)
    assert state["run"]["steps"] == run.manifest.outer.steps

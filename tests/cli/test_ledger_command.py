"""The ledger in a home or a file can be shown, verified starting from the manifest, and
exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2ptrain.archive.chain_log import entry_bytes, entry_of
from p2ptrain.archive.chain_reader import CheckedEntry, ReadOnlyDisk
from p2ptrain.archive.home import Home, sole_use
from p2ptrain.archive.ledger_on_disk import rules_of
from p2ptrain.cli.commands import ledger
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Certificate,
    Certified,
    Commit,
    Entry,
    Participant,
    Roster,
    Skip,
    SnapshotRef,
    Value,
    vote_message,
)
from p2ptrain.names import label
from p2ptrain.run import Run, load_run
from p2ptrain.store import Head, RecordLog, Store
from p2ptrain.testing.ledgers import certify, digest, sealing
from tests.cli.conftest import Command
from tests.ledger import audited
from tests.node.branched import Branched
from tests.node.rig import ANN, BOB

JOINER = Identity.from_seed(b"\x05" * 32).peer
PASSER_BY = Identity.from_seed(b"\x07" * 32).peer


def run_in(home: Path) -> Run:
    run = load_run(Home(home).manifest)
    assert run is not None
    return run


def certified(run: Run, me: Identity, state: LedgerState, value: Value) -> Certified:
    """Certify `value` in the first round that `me` leads, or in round 0 if `me` leads none. A
    certificate needs the proposer's vote."""
    entry, voters = Entry(state.height + 1, state.head, value), state.voters
    rounds = [r for r in range(len(voters)) if voters[(entry.height + r) % len(voters)] == me.peer]
    round = min(rounds, default=0)
    vote = me.sign(vote_message(run.id, entry.height, round, entry.digest))
    return Certified(entry, Certificate(entry.height, round, entry.digest, ((me.peer, vote),)))


@pytest.fixture
def home(organiser_home: Path) -> Path:
    """Return a home with the ledger of a founder that admitted a peer and committed an outer step
    with it. The next outer step was skipped, and the founder continued alone."""
    run, me = run_in(organiser_home), load_or_create(Home(organiser_home).identity)
    assert run.manifest.founders == (me.peer,)
    both = (Participant(me.peer, 64, 1), Participant(JOINER, 32, 1))
    values: list[Value] = [
        Roster(0, 0, (me.peer,), (JOINER,)),
        Roster(0, 0, (me.peer,), (JOINER,), both),
        Commit(0, 0, digest("u0"), SnapshotRef(0, digest("s0")), digest("any")),
        Roster(1, 0, (me.peer, JOINER), (), both),
        Skip(1),
        Roster(2, 0, (me.peer,), ()),
    ]
    rules = rules_of(run)
    state, log = genesis(rules), RecordLog(Home(organiser_home).ledger)
    for value in values:
        one = certified(run, me, state, sealing(state, value))
        state = apply(rules, state, one.entry)
        log.append([entry_bytes(one)])
    return organiser_home


def test_chain_is_shown_in_words(p2ptrain: Command, home: Path) -> None:
    shown = p2ptrain("ledger", "show", "--home", home)
    me, joiner = label(load_or_create(Home(home).identity).peer), label(JOINER)
    u0 = digest("u0")[:8]
    assert shown.code == 0
    assert shown.out.splitlines() == [
        f"    1  roster  step 0: joined: {joiner}",
        f"    2  roster  step 0: attempt 0, averaging by ring: {me}, {joiner}",
        f"    3  commit  step 0: update {u0}, 96 tokens from {me}, {joiner}; snapshot of step 0",
        f"    4  roster  step 1: attempt 0, averaging by ring: {me}, {joiner}; now voting: "
        f"{joiner}",
        "    5  skip    step 1: no attempt succeeded",
        f"    6  roster  step 2: left: {joiner}",
    ]
    assert "6 entries, outer step 2, 96 tokens, 1 voter, 0 learners" in shown.err


def test_branch_and_its_healing_are_shown_in_words(p2ptrain: Command, tmp_path: Path) -> None:
    place = Branched(tmp_path)
    RecordLog(place.home.ledger).append(map(entry_bytes, [*place.own, place.heal]))
    shown = p2ptrain("ledger", "show", "--home", place.home.root)
    me, gone = label(place.me.peer), f"{label(ANN.peer)}, {label(BOB.peer)}"
    towards = place.theirs[0].entry
    lines = shown.out.splitlines()
    assert shown.code == 0
    assert (
        lines[2] == f"    3  branch  step 1: {me} branches off without a quorum; {gone} are missing"
    )
    assert lines[5] == (
        f"    6  heal    step 2: the members leave the branch for the chain with entry "
        f"{towards.digest[:8]} at height {towards.height}, which outranks it"
    )
    assert f"on a branch since outer step 1, without {gone}" in shown.err
    assert "all 6 entries are valid" in p2ptrain("ledger", "verify", "--home", place.home.root).out


def test_verdicts_are_shown_in_words() -> None:
    out = audited.conviction(audited.AUDITED, audited.B, audited.C)
    after = audited.after(audited.AUDITED, out)
    back = audited.acquittal(after, audited.B, 2)
    certify_out = certify(audited.RULES, audited.AUDITED, out)
    certify_back = certify(audited.RULES, after, back)
    links = [
        CheckedEntry(certify_out, audited.AUDITED, after),
        CheckedEntry(certify_back, after, audited.after(after, back)),
    ]
    names = label(audited.B), label(audited.C)
    assert [ledger._words(link) for link in links] == [
        f"{names[0]}, {names[1]} excluded from averages (4 findings of auditors)",
        f"{names[0]} no longer excluded (2 findings of auditors)",
    ]


def test_last_entries_are_available_as_json(p2ptrain: Command, home: Path) -> None:
    shown = p2ptrain("ledger", "show", "--home", home, "--last", "2", "--json").json
    assert (shown["height"], shown["step"], shown["tokens"]) == (6, 2, 96)
    assert [entry["kind"] for entry in shown["entries"]] == ["skip", "roster"]
    assert shown["entries"][-1]["digest"] == shown["head"]
    assert shown["entries"][-1]["signed_by"] == shown["voters"]


def test_run_without_entries_can_be_shown(p2ptrain: Command, organiser_home: Path) -> None:
    shown = p2ptrain("ledger", "show", "--home", organiser_home)
    assert (shown.code, shown.out) == (0, "")
    assert "the members have not agreed on anything yet" in shown.err
    assert p2ptrain("ledger", "show", "--home", organiser_home, "--json").json["height"] == 0


def test_valid_ledger_verifies(p2ptrain: Command, home: Path) -> None:
    assert p2ptrain("ledger", "verify", "--home", home).out == "all 6 entries are valid\n"
    assert p2ptrain("ledger", "verify", "--home", home, "--json").json["good"] is True


def test_exported_ledger_can_be_verified_on_another_machine(
    p2ptrain: Command, home: Path, tmp_path: Path
) -> None:
    """The other machine has only the file and the manifest."""
    file, manifest, away = tmp_path / "l.jsonl", tmp_path / "m.signed", tmp_path / "away"
    exported = p2ptrain("ledger", "export", file, "--home", home, "--json")
    assert (exported.code, exported.json["file"]) == (0, str(file))
    manifest.write_bytes(Home(home).manifest.read_bytes())
    words = ("ledger", "verify", file, "--manifest", manifest, "--home", away)
    assert p2ptrain(*words).out == "all 6 entries are valid\n"
    assert not away.exists()


@pytest.mark.parametrize(
    ("old", "new", "height"),
    [('"tokens"', '"tokens"', 0), (",64,1]", ",63,1]", 2), ('"kind":"skip"', '"kind":"skim"', 5)],
)
def test_first_invalid_entry_is_reported(
    p2ptrain: Command, home: Path, tmp_path: Path, old: str, new: str, height: int
) -> None:
    file = tmp_path / "ledger.jsonl"
    p2ptrain("ledger", "export", file, "--home", home)
    file.write_text(file.read_text().replace(old, new))
    found = p2ptrain("ledger", "verify", file, "--home", home, "--json")
    assert (found.code != 0) is (height > 0)
    if height:
        assert found.json["error"]["code"] == "LEDGER-BROKEN"
        assert f"entry {height} of the ledger" in found.json["error"]["what"]


def test_log_with_an_entry_signed_by_a_stranger_is_refused(p2ptrain: Command, home: Path) -> None:
    run, stranger = run_in(home), Identity.from_seed(b"\x06" * 32)
    chain = [json.loads(record) for record in RecordLog(Home(home).ledger)]
    state = genesis(rules_of(run))
    log = RecordLog(Home(home).ledger)
    forged = certified(run, stranger, state, Roster(0, 0, (stranger.peer,), ()))
    log.rewrite([entry_bytes(forged)])
    found = p2ptrain("ledger", "show", "--home", home)
    assert len(chain) == 6
    assert found.code != 0
    assert "LEDGER-BROKEN" in found.err
    assert "is not a voter" in found.err


def grown(home: Path) -> str:
    """Append 41 entries to the ledger in `home`, and return the second of the three checkpoints
    among them."""
    run, me = run_in(home), load_or_create(Home(home).identity)
    rules, log = rules_of(run), RecordLog(Home(home).ledger)
    state, checkpoints = genesis(rules), []
    for record in log:
        state = apply(rules, state, entry_of(record).entry)
    both = (Participant(me.peer, 1, 1), Participant(JOINER, 1, 1))
    values: list[Value] = [Roster(2, 0, (me.peer,), (JOINER,))]
    for step in range(2, 6):
        named = (SnapshotRef(step, digest("s")), digest("any")) if step < 5 else ()
        values += [
            Roster(step, 0, (me.peer,), (JOINER, PASSER_BY)),
            Roster(step, 0, (me.peer,), (JOINER,)),
        ] * 4
        values.append(Roster(step, 0, (me.peer,), (JOINER,), both))
        values.append(Commit(step, 0, digest("u"), *named))
    for value in values:
        one = certified(run, me, state, sealing(state, value))
        log.append([entry_bytes(one)])
        state = apply(rules, state, one.entry)
        if isinstance(value, Commit) and value.snapshot is not None:
            checkpoints.append(f"{state.height}:{state.head}")
    with Store(Home(home).store) as store:
        snapshot = store.put_blob("snapshot", [b"theta"], {})
        store.put_head(Head(run.id, 1, digest("head"), 6, snapshot, 6))
    return checkpoints[1]


def test_home_without_a_node_prunes_old_entries_and_says_where_it_begins(
    p2ptrain: Command, home: Path, tmp_path: Path
) -> None:
    checkpoint = grown(home)
    height, entry = checkpoint.split(":")
    newest = p2ptrain("ledger", "show", "--home", home, "--json").json["newest_checkpoint"]
    pruned = p2ptrain("ledger", "prune", "--keep-entries", "16", "--home", home)
    assert (pruned.code, pruned.out) == (0, f"the ledger now begins at checkpoint {checkpoint}\n")
    again = p2ptrain("ledger", "prune", "--keep-entries", "16", "--home", home)
    assert "nothing was pruned" in again.out
    told = f"verified from checkpoint {height} ({entry[:12]}…) on; earlier entries were"
    shown = p2ptrain("ledger", "show", "--home", home)
    assert f"{told} verified and pruned in this home" in shown.err
    assert f"newest checkpoint: {newest}" in shown.err
    count = 47 - int(height) + 1
    verified = p2ptrain("ledger", "verify", "--home", home)
    assert (verified.out, told in verified.err) == (
        f"all {count} entries from height {height} on are valid\n",
        True,
    )
    summary = p2ptrain("ledger", "prune", "--keep-entries", "16", "--home", home, "--json").json
    assert summary["begins_at"] is None
    summary = p2ptrain("ledger", "verify", "--home", home, "--json").json
    assert (summary["begins_at"], summary["trusted"]) == (checkpoint, None)
    assert (summary["height"], summary["good"]) == (47, True)

    file = tmp_path / "ledger.jsonl"
    p2ptrain("ledger", "export", file, "--home", home)
    elsewhere = p2ptrain("ledger", "verify", file, "--home", home)
    assert f"this file begins at checkpoint {checkpoint} and does not show" in elsewhere.out
    file.write_text(file.read_text().replace('"trusted":null', '"trusted":0'))
    found = p2ptrain("ledger", "verify", file, "--home", home)
    assert "entry 1 of the ledger" in found.err


def test_home_of_a_running_node_is_not_pruned(p2ptrain: Command, home: Path) -> None:
    with sole_use(Home(home)):
        found = p2ptrain("ledger", "prune", "--keep-entries", "16", "--home", home)
    assert (found.code, "ID-IN-USE" in found.err) == (8, True)


def test_reading_does_not_disturb_a_node_that_is_writing(p2ptrain: Command, home: Path) -> None:
    """The incomplete record at the end is still being written. Reading neither shows nor changes
    it."""
    log = Home(home).ledger
    with log.open("ab") as file:
        file.write(b"\xf7REC half a record")
    before = log.read_bytes()
    assert p2ptrain("ledger", "verify", "--home", home).out == "all 6 entries are valid\n"
    assert log.read_bytes() == before


def test_missing_manifest_is_reported(p2ptrain: Command, home: Path, tmp_path: Path) -> None:
    found = p2ptrain("ledger", "verify", "--home", home, "--manifest", tmp_path / "none")
    assert (found.code, "RUN-NONE" in found.err) == (2, True)


def test_reading_changes_nothing_on_disk(tmp_path: Path) -> None:
    file, disk = tmp_path / "file", ReadOnlyDisk()
    file.write_bytes(b"as it was")
    disk.truncate(file, 0)
    disk.sync(file)
    disk.sync_directory(tmp_path)
    with pytest.raises(OSError, match="opened read-only"):
        disk.write(file, memoryview(b"x"))
    with pytest.raises(OSError, match="opened read-only"):
        disk.opened(file)
    with pytest.raises(OSError, match="opened read-only"):
        disk.replace(file, tmp_path / "other")
    with pytest.raises(OSError, match="opened read-only"):
        disk.remove(file)
    assert file.read_bytes() == b"as it was"

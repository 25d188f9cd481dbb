"""Evidence in a home or a file is described in words, and anyone with the manifest can check it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.archive.chain_log import entry_bytes
from p2ptrain.archive.home import Home
from p2ptrain.archive.ledger_on_disk import rules_of
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.values import Roster, vote_message
from p2ptrain.ledger.messages.evidence import Evidence, Statement, encode_evidence
from p2ptrain.run import Run
from p2ptrain.store import RecordLog
from p2ptrain.testing.ledgers import digest
from tests.cli.conftest import Command
from tests.cli.test_ledger_command import certified, run_in

LIAR = Identity.from_seed(b"\x05" * 32)


def two_votes(run: Run) -> Evidence:
    """Return evidence that the liar voted for two different entries at height 1 in one round."""
    entries = digest("x"), digest("y")
    votes = [
        Statement(None, 0, entry, LIAR.sign(vote_message(run.id, 1, 0, entry))) for entry in entries
    ]
    return Evidence(run.id, 1, LIAR.peer, *votes)


@pytest.fixture
def home(organiser_home: Path) -> Path:
    """Return the home of a run that admitted the liar and evicted it after detecting the lie."""
    run, me = run_in(organiser_home), load_or_create(Home(organiser_home).identity)
    state, log = genesis(rules_of(run)), RecordLog(Home(organiser_home).ledger)
    for learners in ((LIAR.peer,), ()):
        one = certified(run, me, state, Roster(0, 0, (me.peer,), learners))
        state = apply(rules_of(run), state, one.entry)
        log.append([entry_bytes(one)])
    RecordLog(Home(organiser_home).evidence).append([encode_evidence(two_votes(run))])
    return organiser_home


def test_liar_is_shown_with_the_height_of_its_eviction(p2ptrain: Command, home: Path) -> None:
    shown = p2ptrain("ledger", "evidence", "--home", home)
    assert shown.code == 0
    assert shown.out == (
        f"{LIAR.peer} signed contradictory statements at height 1: "
        f"a vote for {digest('x')[:8]} in round 0; and a vote for {digest('y')[:8]} in round 0; "
        "both signatures are valid; evicted at height 2\n"
    )


def test_evidence_is_available_as_json(p2ptrain: Command, home: Path) -> None:
    shown = p2ptrain("ledger", "evidence", "--home", home, "--json").json
    assert "schema" in shown
    (piece,) = shown["evidence"]
    assert (piece["peer"], piece["good"], piece["evicted_at"]) == (LIAR.peer, True, 2)


def test_third_party_verifies_evidence_with_only_the_manifest(
    p2ptrain: Command, home: Path, tmp_path: Path
) -> None:
    run, away = run_in(home), tmp_path / "away"
    forged = replace(two_votes(run), peer=Identity.from_seed(b"\x06" * 32).peer)
    elsewhere = replace(two_votes(run), line=digest("another run"))
    sent = tmp_path / "sent.log"
    RecordLog(sent).append([encode_evidence(each) for each in (two_votes(run), forged, elsewhere)])
    words = ("--file", sent, "--manifest", Home(home).manifest, "--home", away)
    good, wrong, other = p2ptrain("ledger", "evidence", *words).out.splitlines()
    assert good.endswith("both signatures are valid; not evicted, as far as this ledger shows")
    assert "NOT proved" in wrong
    assert "a signature of" in wrong
    assert "it is about another run" in other
    assert not away.exists()


def test_absence_of_evidence_is_reported(p2ptrain: Command, organiser_home: Path) -> None:
    shown = p2ptrain("ledger", "evidence", "--home", organiser_home)
    assert (shown.code, shown.out) == (0, "")
    assert "no evidence against any peer" in shown.err


def test_broken_or_missing_file_is_reported(p2ptrain: Command, home: Path, tmp_path: Path) -> None:
    missing = p2ptrain("ledger", "evidence", "--home", home, "--file", tmp_path / "no.log")
    assert missing.code == 2
    assert "no.log" in missing.err
    RecordLog(Home(home).evidence).append([b'{"not":"evidence"}'])
    broken = p2ptrain("ledger", "evidence", "--home", home, "--json").json["error"]
    assert broken["code"] == "LEDGER-BROKEN"
    assert broken["what"].startswith("piece 2 of the evidence in")
    (tmp_path / "torn.log").write_bytes(b"p2plog1")
    torn = p2ptrain("ledger", "evidence", "--home", home, "--file", tmp_path / "torn.log", "--json")
    assert torn.json["error"]["code"] == "LOG-CORRUPT"

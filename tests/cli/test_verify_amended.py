"""`p2ptrain verify` applies each update of an amended run with the codec and the learning rates
that were in force in the outer step of the update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.identity import load_or_create
from p2ptrain.run import Amendment, Run, SignedAmendment, save_amendments
from p2ptrain.testing.published import policy, publish
from tests.cli.conftest import Command
from tests.cli.histories import make_history

STEPS = 7


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def run(home: Home) -> Run:
    rules = policy(participants_min=1, snapshot_every=2)
    return publish(home, rules=rules, steps=99)


@pytest.fixture
def amendment(home: Home, run: Run) -> SignedAmendment:
    return signed(home, run, codec="fp16", inner_steps=5, outer_lr=0.3, outer_momentum=0.1)


def signed(home: Home, run: Run, **changes: object) -> SignedAmendment:
    wanted = Amendment(run.id, 1, 3, **changes)  # type: ignore[arg-type]
    return SignedAmendment.publish(load_or_create(home.identity), wanted, run)


def test_amended_run_verifies_from_genesis_on(
    p2ptrain: Command, home: Home, run: Run, amendment: SignedAmendment
) -> None:
    history = make_history(home, run, STEPS, [amendment])
    done = p2ptrain("verify", "--from", "genesis", "--home", home.root, "--json").json
    assert (done["good"], done["updates"], done["state"]) == (True, STEPS, history.state)
    assert done["compared"] == [2, 4, 6]
    told = p2ptrain("ledger", "verify", "--home", home.root)
    assert f"amendment 1: {amendment.amendment.words}" in told.out
    shown = p2ptrain("ledger", "show", "--home", home.root).out
    assert "amendment 1 from outer step 3 on" in shown


def test_replay_without_the_amendment_stops_where_it_takes_effect(
    p2ptrain: Command, home: Home, run: Run, amendment: SignedAmendment
) -> None:
    make_history(home, run, STEPS, [amendment])
    # The organiser signed two amendments with the same number. This home has the one that the
    # members did not agree on.
    save_amendments(home.amendments, [signed(home, run, codec="fp16")])
    done = p2ptrain("verify", "--from", "genesis", "--home", home.root, "--json")
    assert "error[AUDIT-PARTIAL]" in done.err
    assert (done.json["reached"], done.json["updates"], done.json["good"]) == (3, 3, True)
    missing = {"kind": "amendment", "step": 3, "digest": amendment.digest}
    assert done.json["missing"] == missing
    (told,) = p2ptrain("ledger", "verify", "--home", home.root, "--json").json["amendments"]
    assert (told["digest"], told["held"]) == (amendment.digest, False)


def test_quorum_that_certified_an_unsigned_amendment_is_detected(
    p2ptrain: Command, home: Home, run: Run, amendment: SignedAmendment
) -> None:
    early = replace(amendment.terms, step=2)
    make_history(home, run, STEPS, [amendment], {0: early})
    done = p2ptrain("verify", "--from", "genesis", "--home", home.root, "--json")
    assert "error[AMEND-DIFFERS]" in done.err
    assert (done.json["good"], done.json["difference"]["kind"]) == (False, "amendment")
    told = p2ptrain("ledger", "verify", "--home", home.root)
    assert "error[AMEND-DIFFERS]" in told.err

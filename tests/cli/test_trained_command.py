"""A home's ledger is compared with training journals. The command reports the blocks for which
they differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.ledger.chain.values import Commit
from p2ptrain.observe.journal import Journal
from p2ptrain.testing.published import policy, publish
from tests.cli.conftest import Command
from tests.cli.histories import make_history
from tests.node.accounts import ChainCredits


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home with the ledger of three outer steps by one peer, and that peer's journal."""
    home = Home(tmp_path / "home")
    run = publish(home, rules=policy(participants_min=1), steps=9)
    history = make_history(home, run, 3)
    commits = [each.entry for each in history.chain if isinstance(each.entry.value, Commit)]
    with Journal(home.journal) as journal:
        for entry, (step, _, credits) in zip(
            commits, ChainCredits(history.chain, run).committed(), strict=True
        ):
            ((peer, blocks),) = credits.items()
            journal.write("ready", peer=peer, step=step, head=entry.parent, trained=blocks)
    return home


def test_journal_that_agrees_with_the_ledger_is_confirmed(p2ptrain: Command, home: Home) -> None:
    done = p2ptrain("ledger", "trained", "--home", home.root)
    assert (done.code, done.out) == (
        0,
        "6 committed blocks were trained on exactly once, each by the member that held its lease\n",
    )


def test_journal_that_contradicts_the_ledger_is_an_error_naming_the_block(
    p2ptrain: Command, home: Home
) -> None:
    text = home.journal.read_text().replace('"trained":[2,3]', '"trained":[2,2,3]')
    home.journal.write_text(text)
    done = p2ptrain("ledger", "trained", home.journal, "--home", home.root)
    assert done.code == 1
    assert "error[TRAINED-OTHERWISE]" in done.err
    assert "outer step 1, block 2, " in done.err
    told = p2ptrain("ledger", "trained", home.journal, "--home", home.root, "--json")
    assert (told.code, told.json["good"], len(told.json["faults"])) == (1, False, 1)


def test_empty_journal_is_accepted_but_a_missing_one_is_an_error(
    p2ptrain: Command, home: Home
) -> None:
    (home.root / "empty.jsonl").touch()
    done = p2ptrain("ledger", "trained", home.root / "empty.jsonl", "--home", home.root, "--json")
    assert {"good": True, "checked": 0, "unseen": 6}.items() <= done.json.items()
    missing = p2ptrain("ledger", "trained", home.root / "none", "--home", home.root)
    assert (missing.code, "is not a file" in missing.err) == (2, True)

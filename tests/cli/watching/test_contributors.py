"""`p2ptrain ledger contributors` and `p2ptrain me` count certified tokens in a home's ledger."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from p2ptrain.archive.contributions import Contribution
from p2ptrain.archive.home import Home
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.names import label
from p2ptrain.observe.series import StepRow
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.testing.published import policy, publish
from tests.cli.conftest import Command
from tests.cli.histories import WrittenHistory, make_history

STEPS = 12


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def history(home: Home) -> WrittenHistory:
    rules = policy(participants_min=1, snapshot_every=4)
    return make_history(home, publish(home, rules=rules, steps=99), STEPS)


def record(home: Home, run: str, *, hours_each: float = 10.0) -> None:
    """Write the times and the held-out losses of the outer steps."""
    now = time.time()
    rows = [
        StepRow(step, time=now - 3600 * hours_each * (STEPS - step) - 60, held_out=6 - step / 10)
        for step in range(1, STEPS + 1)
    ]
    writer = SeriesWriter(home.root / "series.db", run)
    writer.write(rows)
    writer.close()


def test_contributors_are_counted_from_the_ledger_alone(
    p2ptrain: Command, home: Home, history: WrittenHistory
) -> None:
    me = load_or_create(home.identity).peer
    told = p2ptrain("ledger", "contributors", "--home", home.root, "--json").json
    (mine,) = told["contributors"]
    assert (told["run"], told["step"], told["steps"]) == (history.run.id, STEPS, STEPS)
    assert (told["head"], told["height"]) == (history.chain[-1].entry.digest, 2 * STEPS)
    assert mine["tokens"] == told["tokens"] > 0
    assert (mine["peer"], mine["share"], mine["steps"]) == (me, 1.0, STEPS)
    assert (mine["first_step"], mine["last_step"]) == (1, STEPS)
    shown = p2ptrain("ledger", "contributors", "--home", home.root)
    assert shown.out.split() == [
        *("1", *label(me).split(), f"{mine['tokens']:,}", "tokens", "100.0%"),
        *("12", "steps", "steps", "1", "to", "12"),
    ]
    assert f"outer steps 1 to {STEPS}: {mine['tokens']:,} tokens in 12 committed" in shown.err


def test_last_day_needs_the_times_in_the_series(
    p2ptrain: Command, home: Home, history: WrittenHistory
) -> None:
    refused = p2ptrain("ledger", "contributors", "--home", home.root, "--last", "24h")
    assert (refused.code, "error[SERIES]" in refused.err) == (2, True)
    record(home, history.run.id)
    told = p2ptrain("ledger", "contributors", "--home", home.root, "--last", "24h", "--json").json
    assert (told["after_step"], told["steps"]) == (STEPS - 3, 3)
    assert told["contributors"][0]["first_step"] == STEPS - 2
    none = p2ptrain("ledger", "contributors", "--home", home.root, "--last", "1s")
    assert (none.code, none.out) == (0, "")
    assert "no outer step was committed in this time" in none.err


def test_contribution_notes_its_first_step_and_its_powers_of_ten() -> None:
    mine = Contribution()
    for step, tokens in [(3, 7), (4, 93), (9, 1_000_000)]:
        mine.add(step, tokens)
    assert (mine.tokens, mine.steps, mine.first_step, mine.last_step) == (1_000_100, 3, 3, 9)
    assert mine.reached_tokens == {10: 4, 100: 4, 1000: 9, 10_000: 9, 100_000: 9, 1_000_000: 9}
    for step in range(10, 200):
        mine.add(step, 1)
    assert mine.reached_steps == {10: 16, 100: 106}


def test_me_tells_share_losses_and_milestones(
    p2ptrain: Command, home: Home, history: WrittenHistory
) -> None:
    record(home, history.run.id)
    me = load_or_create(home.identity).peer
    shown = p2ptrain("me", "--home", home.root)
    lines = shown.out.splitlines()
    told = p2ptrain("me", "--home", home.root, "--json").json
    tokens = f"{told['tokens']:,}"
    assert lines[:5] == [
        f"{label(me)} in run {history.run.manifest.name!r}",
        f"{tokens} of {tokens} tokens are yours (100.0%)",
        "12 outer steps of 12, from 1 to 12",
        "certified by the members' votes, and checkable from step 0",
        "held-out loss 4.800 now (step 12)",
    ]
    assert lines[5].startswith("milestone: your first outer step was 1 (2")
    assert any(line.startswith("milestone: your 10th outer step was 10 (2") for line in lines)
    assert told["held_out"] == {"before": None, "after": {"step": 12, "loss": 4.8}}
    assert told["share"] == 1.0


def test_me_of_a_peer_without_tokens_says_when_they_count(
    p2ptrain: Command, home: Home, history: WrittenHistory, tmp_path: Path
) -> None:
    other = Home(tmp_path / "other")
    other.manifest.write_bytes(home.manifest.read_bytes())
    other.ledger.write_bytes(home.ledger.read_bytes())
    refused = p2ptrain("me", "--home", other.root)
    assert (refused.code, "there is no key" in refused.err) == (2, True)
    load_or_create(other.identity)
    shown = p2ptrain("me", "--home", other.root)
    assert "tokens are yours yet" in shown.out
    assert f"status --why --home {other.root}" in shown.out


def test_card_is_written_and_agrees_with_the_ledger(
    p2ptrain: Command, home: Home, history: WrittenHistory, tmp_path: Path
) -> None:
    record(home, history.run.id)
    card = tmp_path / "card.svg"
    wrote = p2ptrain("me", "--card", card, "--home", home.root)
    assert (wrote.code, f"wrote {card}" in wrote.err) == (0, True)
    checked = p2ptrain("me", "--verify", card, "--home", home.root)
    assert checked.code == 0
    assert checked.out.splitlines()[-1] == (
        f"the ledger in this home says the same, up to entry {2 * STEPS}"
    )
    elsewhere = p2ptrain("me", "--verify", card, "--home", tmp_path / "nowhere", "--json").json
    assert elsewhere["agrees_with_ledger"] is None
    assert elsewhere["steps"] == STEPS


def test_card_that_exaggerates_is_refused_by_the_ledger(
    p2ptrain: Command, home: Home, history: WrittenHistory, tmp_path: Path
) -> None:
    from p2ptrain.export.contribution_card import Card, signed_card

    me: Identity = load_or_create(home.identity)
    card = Card(
        me.peer,
        history.run.id,
        "run",
        tokens=10**9,
        tokens_total=10**9,
        steps=STEPS,
        first_step=1,
        last_step=STEPS,
        height=2 * STEPS,
        head=history.chain[-1].entry.digest,
        issued=1_800_000_000,
    )
    file = tmp_path / "card.svg"
    file.write_text(signed_card(card, me))
    refused = p2ptrain("me", "--verify", file, "--home", home.root)
    assert (refused.code, "error[CARD]" in refused.err) == (5, True)
    assert "the card says 1,000,000,000 of 1,000,000,000 tokens" in refused.err
    missing = p2ptrain("me", "--verify", tmp_path / "none.svg", "--home", home.root)
    assert missing.code == 2

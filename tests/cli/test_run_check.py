"""`p2ptrain run check` says what a run needs before anyone is invited."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.cli.commands.run_check import duration
from p2ptrain.config.samples import sample
from p2ptrain.identity import load_or_create
from p2ptrain.run import Amendment, SignedAmendment
from p2ptrain.testing.published import policy, publish
from tests.cli.conftest import Command
from tests.cli.histories import make_history

SPEED = ("--tokens-per-s", 2000)


def test_table_has_a_line_for_each_number_of_peers(p2ptrain: Command, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(sample("opendiloco_150m"))
    (tmp_path / "corpus").mkdir()
    words = ("run", "check", path, "--peers", 12, "--peers", 3, "--tokens-per-s", 50_000)
    shown = p2ptrain(*words)
    assert shown.code == 0
    rows = [line for line in shown.out.splitlines() if line.split()[0] in ("3", "12")]
    assert [row.split()[:3] for row in rows] == [["3", "291.1", "MB"], ["12", "400.3", "MB"]]
    assert "as given" in shown.out
    facts = p2ptrain(*words, "--json").json
    assert [plan["peers"] for plan in facts["plans"]] == [3] * 3 + [12] * 3
    assert (facts["is_told"], facts["tokens_per_s"], facts["lints"]) == (True, 50_000, [])


def test_duration_is_not_estimated_without_a_given_speed(p2ptrain: Command, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(sample("demo"))
    shown, told = (p2ptrain("run", "check", path, *more).out for more in ((), SPEED))
    assert "%" not in shown.replace("FAULT", "")
    assert "; give --tokens-per-s to see how long that takes\n" in shown
    assert "then an exchange's time)" in shown
    assert "at 2,000 tokens/s (as given)" in told
    assert "%" in told


def test_missing_files_that_a_run_file_names_are_reported(
    p2ptrain: Command, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(sample("demo").replace('source = "stdlib"', 'source = "mine"\ntokenizer = "t"'))
    checked = p2ptrain("run", "check", path)
    assert checked.code == 0
    said = [line for line in checked.out.splitlines() if line.startswith("warning   data.")]
    assert [line.split()[1] for line in said] == ["data.source:", "data.tokenizer:"]
    assert all("does not exist yet" in line for line in said)
    (tmp_path / "mine").mkdir()
    (tmp_path / "t").touch()
    assert "warning   data." not in p2ptrain("run", "check", path).out


def test_wrong_data_field_is_a_fault(p2ptrain: Command, tmp_path: Path) -> None:
    """The field was once checked only while the data was packed, which can take hours."""
    path, data = tmp_path / "run.toml", tmp_path / "data.jsonl"
    path.write_text(sample("tiny").replace('source = "stdlib"', 'source = "data.jsonl"'))
    data.write_text('{"body": "some text"}\n')
    checked = p2ptrain("run", "check", path)
    assert checked.code == 2
    (fault,) = [line for line in checked.out.splitlines() if line.startswith("FAULT")]
    assert fault.startswith("FAULT     data.field: ")
    assert "there is no field 'text'; the fields are" in fault
    data.write_text('{"text": "some text"}\n')
    assert p2ptrain("run", "check", path).code == 0


def test_run_that_cannot_work_exits_with_status_2(p2ptrain: Command, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(sample("intellect1_10b").replace("_sequences = 127", "_sequences = 128"))
    shown = p2ptrain("run", "check", path)
    assert shown.code == 2
    (fault,) = [line for line in shown.out.splitlines() if line.startswith("FAULT")]
    assert "at most 127 sequences fit" in fault
    path.write_text("nonsense")
    assert p2ptrain("run", "check", path).code == 2


def test_memory_of_an_eager_run_is_shown(p2ptrain: Command, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = sample("opendiloco_150m")
    path.write_text(text + "\n[sync]\noverlap_steps = 500\neager = true\n")
    shown = p2ptrain("run", "check", path)
    assert "the peer's own newest work (eager) 2.6 GB, all ranks together" in shown.out
    path.write_text(text)
    assert "(eager)" not in p2ptrain("run", "check", path).out


@pytest.fixture
def amended(tmp_path: Path) -> tuple[Home, Path]:
    """Return a home where amendment 1 was agreed, and the run file that was published there."""
    home = Home(tmp_path / "home")
    run = publish(home, rules=policy(participants_min=1, snapshot_every=2), steps=99)
    wanted = Amendment(run.id, 1, 3, codec="fp16", inner_steps=6, outer_lr=0.3)
    signed = SignedAmendment.publish(load_or_create(home.identity), wanted, run)
    make_history(home, run, 2, [signed])
    path = tmp_path / "run.toml"
    named = f'name = "{run.manifest.name}"'
    path.write_text(sample("tiny").replace('name = "tiny"', named))
    return home, path


def test_check_of_a_home_includes_its_agreed_amendments(
    p2ptrain: Command, amended: tuple[Home, Path]
) -> None:
    home, path = amended
    words = ("run", "check", path, "--json")
    nowhere = home.root.parent / "none"
    written, now = (p2ptrain(*words, "--home", each).json for each in (nowhere, home.root))
    (agreed,) = now["amendments"]
    assert (agreed["number"], agreed["from_step"], agreed["held"]) == (1, 3, True)
    assert (written["amendments"], nowhere.exists()) == ([], False)
    assert now["step_tokens"] == 3 * written["step_tokens"]
    assert now["update_bytes"] > 1.9 * written["update_bytes"]
    shown = p2ptrain("run", "check", path, "--home", home.root).out
    said = "amended   1: inner steps 6, codec fp16, outer learning rate 0.3 from outer step 3 on\n"
    assert said in shown


def test_amendments_of_a_different_run_are_ignored(
    p2ptrain: Command, amended: tuple[Home, Path]
) -> None:
    home, path = amended
    path.write_text(sample("tiny").replace('name = "tiny"', 'name = "other"'))
    checked = p2ptrain("run", "check", path, "--home", home.root, "--json")
    assert (checked.code, checked.json["amendments"]) == (0, [])
    assert "its amendments are ignored" in checked.err


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1.23, "1.2 s"), (89.0, "89.0 s"), (600, "10 min"), (7300, "2 h"), (2e5, "2 d")],
)
def test_duration_is_shown_in_a_suitable_unit(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_check_says_whether_contributions_are_claims(p2ptrain: Command, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for text, said in (
        ("", "trust     contributions are signed claims: "),
        ("[trust]\nclaims = false\n", "trust     contributions are not claimed: "),
    ):
        path.write_text(f"{sample('tiny')}\n{text}")
        assert said in p2ptrain("run", "check", path).out

"""`p2ptrain run check`: what a run takes, before anybody is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.cli.checking import duration
from p2ptrain.config.samples import sample
from tests.cli.conftest import Command


def test_the_table_has_a_line_for_each_number_of_peers(p2ptrain: Command, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(sample("opendiloco_150m"))
    words = ("run", "check", path, "--peers", 12, "--peers", 3, "--tokens-per-s", 50_000)
    shown = p2ptrain(*words)
    assert shown.code == 0
    rows = [line for line in shown.out.splitlines() if line.split()[0] in ("3", "12")]
    assert [row.split()[:3] for row in rows] == [["3", "291.1", "MB"], ["12", "400.3", "MB"]]
    assert "as told" in shown.out
    facts = p2ptrain(*words, "--json").json
    assert [plan["peers"] for plan in facts["plans"]] == [3] * 3 + [12] * 3
    assert (facts["is_told"], facts["tokens_per_s"], facts["lints"]) == (True, 50_000, [])


def test_a_run_that_cannot_work_ends_with_status_2(p2ptrain: Command, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(sample("intellect1_10b").replace("_sequences = 127", "_sequences = 128"))
    shown = p2ptrain("run", "check", path)
    assert shown.code == 2
    (fault,) = [line for line in shown.out.splitlines() if line.startswith("FAULT")]
    assert "at most 127 sequences fit" in fault
    path.write_text("nonsense")
    assert p2ptrain("run", "check", path).code == 2


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1.23, "1.2 s"), (89.0, "89.0 s"), (600, "10 min"), (7300, "2 h"), (2e5, "2 d")],
)
def test_a_time_is_shown_in_the_unit_that_suits_it(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown

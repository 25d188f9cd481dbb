"""The measures of `scripts/accept` report their results, fail if a part is missing, and name
existing tests.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.acceptance.measures import page_claims, reach_claims, siege
from tests.acceptance.measures.attacks import ATTACKS, Attack
from tests.acceptance.measures.pytest_runs import counts_in
from tests.acceptance.measures.registry import ACCEPTANCES
from tests.acceptance.measures.setting import ROOT, Setting, objects_in, select

LOG = (
    "== pytest, x\n1 failed, 12 passed in 3 s\n== mypy --strict\n3 passed in 1 s\n2 errors in 1 s\n"
)


def reading(tmp_path: Path, name: str, text: str) -> Setting:
    """Return a setting that reads `text` as the earlier result `name`."""
    path = tmp_path / name
    path.write_text(text)
    return Setting(tmp_path, given={name: path})


def test_counts_are_summed_over_all_parts_of_a_log() -> None:
    assert counts_in(LOG) == {"passed": 15, "failed": 1, "error": 2}


def test_log_with_a_failure_is_not_green(tmp_path: Path) -> None:
    (line,) = siege.tests(reading(tmp_path, "test", LOG))
    assert (line["ok"], line["read"]) == (False, True)


def test_partial_run_of_the_tests_is_not_accepted(tmp_path: Path) -> None:
    part = "== pytest, the ledger\n12 passed in 3 s\n"
    (line,) = siege.tests(reading(tmp_path, "test", part))
    assert line["ok"] is False
    (line,) = siege.tests(reading(tmp_path, "test", part * siege.PIECES))
    assert line["ok"] is True


def test_results_of_a_siege_are_reported_unchanged_but_for_a_prefix(tmp_path: Path) -> None:
    told = {"measure": "nodes ended", "value": 1, "required": "0", "ok": False}
    (line,) = siege.siege(reading(tmp_path, "siege", f"noise\n{json.dumps(told)}\n"))
    assert line == told | {"measure": "siege: nodes ended"}


def test_attack_without_a_test_is_not_accepted(tmp_path: Path) -> None:
    for which in (Attack("0", "x", ()), Attack("0", "x", ("tests/no/test_such.py",))):
        (line,) = siege.attack(which, Setting(tmp_path))
        assert line["ok"] is False


def test_failing_test_of_an_attack_is_reported(tmp_path: Path) -> None:
    failing = tmp_path / "test_it.py"
    failing.write_text("def test_it() -> None:\n    assert False\n")
    (line,) = siege.attack(Attack("0", "x", (str(failing),)), Setting(tmp_path))
    assert (line["ok"], line["value"]) == (False, "the test fails")


def test_json_objects_are_found_between_other_lines() -> None:
    assert objects_in('x\n{"a": 1}\n{broken\n[2]\n') == [{"a": 1}]


def test_measures_are_selected_by_a_word() -> None:
    chosen = select(ACCEPTANCES["siege"], ["campaign"])
    assert len(chosen) == len(siege.CAMPAIGNS)
    assert select(ACCEPTANCES["siege"], []) == list(ACCEPTANCES["siege"])


CLAIMS = (*reach_claims.CLAIMS, *page_claims.FAULTS, *page_claims.CLAIMS)
NAMED = {each.number: each.tests for each in ATTACKS} | {each.log: each.tests for each in CLAIMS}


@pytest.mark.parametrize("tests", NAMED.values(), ids=NAMED)
def test_every_test_that_is_named_for_a_measure_exists(tests: tuple[str, ...]) -> None:
    for each in tests:
        path, _, name = each.partition("::")
        assert (ROOT / path).exists(), path
        if not name:
            continue
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        defined = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        assert name.rpartition("::")[2] in defined

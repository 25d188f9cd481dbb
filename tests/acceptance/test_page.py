"""`scripts/accept page` judges what the page costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.measures import page
from tests.acceptance.measures.setting import Setting

GOOD: dict[str, object] = {
    "peers": 24,
    "steps": 600,
    "seconds": 300.0,
    "commits": 50,
    "seen": 50,
    "late_s": [0.19, 0.49],
    "bytes_per_hour": 1_087_062,
    "node_cpu_share": 0.00079,
}


def judged(folder: Path, **changes: object) -> list[tuple[object, object]]:
    """Return the value of each line, and whether it is ok."""
    path = folder / "costs"
    path.write_text("loading\n" + json.dumps(GOOD | changes) + "\n")
    lines = page.costs(Setting(folder, given={"costs": path}))
    return [(each["value"], each["ok"]) for each in lines]


def test_page_within_its_limits_is_accepted(tmp_path: Path) -> None:
    assert judged(tmp_path) == [(0.49, True), (1_087_062.0, True), (0.00079, True)]


@pytest.mark.parametrize(
    ("changes", "ok"),
    [
        ({"late_s": [0.2, 1.1]}, [False, True, True]),
        ({"seen": 48}, [False, True, True]),
        ({"bytes_per_hour": 2_000_001}, [True, False, True]),
        ({"node_cpu_share": 0.0051}, [True, True, False]),
        ({"peers": 23}, [False, False, False]),
        ({"steps": 599}, [False, False, False]),
    ],
)
def test_each_limit_is_checked(tmp_path: Path, changes: dict[str, object], ok: list[bool]) -> None:
    assert [each for _, each in judged(tmp_path, **changes)] == ok


def test_missing_result_is_not_accepted(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    path.write_text("no line\n")
    lines = list(page.costs(Setting(tmp_path, given={"costs": path})))
    assert [each["ok"] for each in lines] == [False, False, False]


def test_tests_of_all_claims_exist() -> None:
    files = {name.partition("::")[0] for each in page.CLAIMS for name in each.tests}
    assert [name for name in files if not Path(name).exists()] == []

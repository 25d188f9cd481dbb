"""`scripts/accept page` judges what the page costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.measures import commands, page
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


def test_every_measure_has_a_name_of_its_own() -> None:
    names = [each.name for each in page.MEASURES]
    assert len(names) == len({*names})


VISITED: dict[str, object] = {
    "trainers": 1,
    "clients": 500,
    "served_min": 32,
    "served_max": 32,
    "ratio": 0.9991,
    "ratio_error": 0.0021,
}


def reading(folder: Path, name: str, *objects: dict[str, object]) -> Setting:
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return Setting(folder, given={name: path})


@pytest.mark.parametrize(
    ("changes", "ok"),
    [
        ({}, True),
        ({"ratio": 0.9899}, False),
        ({"ratio_error": 0.0051}, False),
        ({"served_min": 29}, False),
        ({"served_max": 33}, False),
        ({"clients": 499}, False),
    ],
)
def test_training_rate_must_be_known_and_unchanged(
    tmp_path: Path, changes: dict[str, object], *, ok: bool
) -> None:
    (line,) = page.visited(reading(tmp_path, "visited", VISITED | changes))
    assert line["ok"] is ok


PAUSE: dict[str, object] = {
    "freed_s": 1.3,
    "inner_step_s_max": 1.1,
    "end_of_process_s": 0.25,
    "took_part_while_paused": [],
    "outer_step_when_trainer_was_up": 9,
    "contributed_to_outer_step": 10,
}


@pytest.mark.parametrize(
    ("changes", "ok"),
    [
        ({}, [True, True]),
        ({"freed_s": 1.7}, [False, True]),
        ({"freed_s": 1.7, "end_of_process_s": 0.4}, [True, True]),
        ({"contributed_to_outer_step": 11}, [True, False]),
        ({"took_part_while_paused": [8]}, [True, False]),
    ],
)
def test_each_pause_must_be_short_and_complete(
    tmp_path: Path, changes: dict[str, object], ok: list[bool]
) -> None:
    lines = page.pausing(reading(tmp_path, "pausing", PAUSE, PAUSE, PAUSE | changes))
    assert [each["ok"] for each in lines] == ok
    short = page.pausing(reading(tmp_path, "pausing", PAUSE))
    assert [each["ok"] for each in short] == [False, False]


def test_waterfall_may_differ_by_two_percent(tmp_path: Path) -> None:
    for value, ok in ((0.02, True), (0.0201, False)):
        (line,) = page.waterfall(reading(tmp_path, "waterfall", {"difference": value}))
        assert line["ok"] is ok
    (missing,) = page.waterfall(reading(tmp_path, "waterfall"))
    assert missing["ok"] is False


def test_lines_of_the_browser_are_reported_unchanged(tmp_path: Path) -> None:
    told = {"measure": "first paint in ms", "value": 120, "required": "<= 300", "ok": True}
    path = tmp_path / "browser"
    path.write_text("loading\n" + json.dumps(told) + "\n")
    assert list(page.browser(Setting(tmp_path, given={"browser": path}))) == [told]
    path.write_text("check_page needs Chromium\n")
    (missing,) = page.browser(Setting(tmp_path, given={"browser": path}))
    assert missing["ok"] is False


def test_time_of_a_failing_command_is_not_accepted() -> None:
    assert 0 < commands.cpu_s("--version") < 60
    with pytest.raises(OSError, match="status 2"):
        commands.cpu_s("--no-such-option")

"""The report of a home shows what the node's page shows, without what concerns only its owner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.names import peer_name
from p2ptrain.run.outside_facts import Public
from p2ptrain.testing.published import publish
from p2ptrain.testing.series_history import write_history
from p2ptrain.web.report.from_home import PRIVATE, HomeReport, public_status


async def data_of(home: Home, public: Public) -> dict[str, Any]:
    run = publish(home, public=public)
    write_history(home.root / "series.db", run.id, peers=3, steps=40)
    report = HomeReport(home, run)
    try:
        found: dict[str, Any] = json.loads(json.dumps(await report.data((), 7)))
    finally:
        report.close()
    return found


@pytest.mark.parametrize("names", [True, False])
async def test_report_of_a_stopped_node_has_its_history(tmp_path: Path, *, names: bool) -> None:
    data = await data_of(Home(tmp_path / "home"), Public(telemetry=True, names=names))
    state, series = data["state"], data["series"]
    assert (state["serial"], state["can_act"], state["you"], state["status"]) == (
        7,
        False,
        None,
        None,
    )
    assert state["run"]["name"] == "swarm"
    assert series["steps"]["step"][-1] == 40
    assert len(series["contributors"]["all"]) == 3
    first = series["contributors"]["all"][0]
    assert (first["name"] == peer_name(first["peer"])) == names
    assert first["peer"].startswith("12D3KooW" if names else "peer ")
    assert data["samples"]["samples"] is not None
    assert {"state", "series", "events", "samples"} == set(data)


def test_status_for_others_has_nothing_about_the_machine() -> None:
    status = {"outer_step": 3, "warnings": ["DISK-LOW in /home/ann"], "trainer": "an old laptop"}
    assert public_status(status) == {"outer_step": 3, "warnings": [], "trainer": ""}
    assert {"asking", "addresses", "cautions"} <= PRIVATE.keys()

"""The report of a watched run has what the observer has verified, with names only if they are
public."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2ptrain.names import peer_name
from p2ptrain.node.watching.watch_server import record_of
from p2ptrain.peers.outside.sample_text import SampleText
from p2ptrain.run.outside_facts import Public
from p2ptrain.web.report.from_watch import WatchReport
from tests.node.watching.test_watching import grow, ledger_of, serving


@pytest.mark.parametrize("names", [True, False])
async def test_report_has_the_verified_steps_and_samples(tmp_path: Path, *, names: bool) -> None:
    async with serving(tmp_path, public=Public(telemetry=True, names=names)) as r:
        grow(r, 3)
        ledger, me = ledger_of(r), r.context.me
        steps = ledger.add(r.context.ledger.core.chain)
        record = record_of(r.context)
        assert record is not None
        ledger.note_records([record.to_bytes(r.context.identity)])
        ledger.note_samples([SampleText(r.run.id, 2, 0, "a time").to_bytes(r.context.identity)])
        report = WatchReport(r.run)
        report.note(steps, now=1000.0)
        data = json.loads(json.dumps(report.data(ledger, 7, now=1005.0)))
        state, series = data["state"], data["series"]
        assert state["sentence"] == "Watched from outside: step 3 of 40, 1 member"
        assert (state["serial"], state["can_act"], state["you"]) == (7, False, None)
        assert series["steps"]["step"] == [1, 2, 3]
        assert series["steps"]["tokens_total"] == [16, 32, 48]
        assert series["steps"]["time"] == [1000.0] * 3
        (one,) = series["contributors"]["all"]
        assert (one["tokens"], one["steps"], one["share"]) == (48, 3, 1.0)
        assert data["samples"]["prompts"] == ["once", "upon"]
        (sample,) = data["samples"]["samples"]
        assert (sample["step"], sample["prompt"], sample["text"]) == (2, 0, "a time")
        shown = json.dumps(data)
        assert (me in shown, peer_name(me) in shown) == (names, names)
        if not names:
            assert (one["peer"], sample["peer"]) == ("peer 1", "peer 1")

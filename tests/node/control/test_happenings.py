"""The events of a run are plain sentences, and a node tells each of them once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import SnapshotRef
from p2ptrain.names import label
from p2ptrain.node.control.series.closed_steps import ClosedStep
from p2ptrain.node.control.series.happenings import Happenings, about
from p2ptrain.observe.cautions import Caution
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, NewRig, opening, somebody

ALONE: dict[str, Any] = {"steps": 40, "rules": policy(participants_min=1)}
UPDATE = Digest("d" * 64)


async def test_records_of_the_journal_become_events(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE)
    happenings = Happenings(r.context)
    for record in (
        {"event": "waiting", "why": "standing by for 71 s"},
        {"event": "branch", "what": "on a branch since outer step 4"},
        {"event": "rejoining", "parted_at": 9},
        {"event": "decided", "kind": "heal"},
        {"event": "decided", "kind": "commit"},
        {"event": "paused", "reason": "you asked for it"},
        {"event": "resumed"},
        {},
    ):
        happenings.note(record)
    me = r.context.me
    assert list(happenings.new(r.context)) == [
        ("stall", "", "This node is standing by for 71 s."),
        ("branch", "", "This node is on a branch: on a branch since outer step 4."),
        ("heal", "", "Another chain outranks this node's, which drops its entries after 9."),
        ("heal", "", "The voters of a branch returned to the run."),
        ("pause", me, "This node paused: you asked for it."),
        ("resume", me, "This node trains again."),
    ]
    assert list(happenings.new(r.context)) == []


async def test_many_notes_are_bounded(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE)
    happenings = Happenings(r.context)
    for _ in range(10_000):
        happenings.note({"event": "waiting", "why": "slow"})
    assert len(list(happenings.new(r.context))) == 256


async def test_members_warnings_snapshots_and_the_end_are_told_once(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context = r.context
    context.outer.step = 0
    happenings = Happenings(context)
    r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer,)))
    context.alerts.show("clock", Caution("CLOCK", "the clock is wrong"))
    context.alerts.show("waiting", Caution("WAITING", "it waits"))
    r.set_chain(snapshot=SnapshotRef(0, UPDATE))
    assert list(happenings.new(context)) == [
        ("join", ANN.peer, f"{label(ANN.peer)} joined."),
        ("warning", "", "The clock is wrong (CLOCK)."),
        ("snapshot", "", "The members certified a snapshot of outer step 0."),
    ]
    assert list(happenings.new(context)) == []
    r.set_chain(phase=Phase.ENDED)
    assert list(happenings.new(context)) == [
        ("end", "", "The run is complete: 0 outer steps, 0 tokens.")
    ]
    assert list(happenings.new(context)) == []


async def test_many_joiners_at_once_have_few_events(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context = r.context
    context.outer.step = 0
    happenings = Happenings(context)
    many = tuple(somebody(number).peer for number in range(200, 220))
    r.decide(replace(opening(context.ledger.snapshot), learners=many))
    events = list(happenings.new(context))
    assert len(events) == 9
    assert events[-1] == ("join", "", "12 more peers: joined.")


def test_retries_and_skips_are_events() -> None:
    usual = ClosedStep(7, 0, False, (ANN.peer,), (), 0)
    assert list(about(usual)) == []
    assert list(about(replace(usual, attempt=2))) == [
        ("retry", "", "The exchange of outer step 7 was repeated: attempt 3 succeeded.")
    ]
    assert list(about(replace(usual, attempt=2, skipped=True))) == [
        ("skip", "", "The members skipped outer step 7: its exchanges failed.")
    ]

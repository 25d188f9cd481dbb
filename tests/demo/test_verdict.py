"""The demo's verdict accepts a good run, and rejects a run for each possible failure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.demo.verdict import Facts, claims, verdict

NODE = {
    "ledger_height": 41,
    "ledger_head": "a" * 64,
    "state_digest": "b" * 64,
    "outer_step": 16,
}
GOOD = Facts(
    nodes=[NODE | {"name": name} for name in ("v1", "v2", "v4")],
    outer_steps=16,
    outer_steps_planned=16,
    val_loss_first=7.6,
    val_loss_last=5.9,
    killed_at_step=4,
    killed_in_reduce=True,
    killed_step_committed_without_victim=True,
    survivors_tokens_kept=True,
    kill_to_commit_s=2.5,
    join_fetch_s=3.0,
    join_sources=3,
    join_updates_replayed=2,
    join_first_roster_step=8,
    refused_code="AUTH-PENDING",
    refused_exit=6,
    refused_says_what_to_do=True,
    seed_stopped_at_step=10,
    steps_after_seed_stopped=6,
    blocks_trained_once=480,
    blocks_trained_otherwise=0,
)


def test_good_run_is_ok_and_its_object_is_json() -> None:
    told = verdict(GOOD)
    assert told["ok"] is True
    assert all(told["claims"].values())
    assert json.loads(json.dumps(told)) == told


def other(**changes: object) -> list[dict[str, object]]:
    return [*GOOD.nodes[:2], GOOD.nodes[2] | changes]


@pytest.mark.parametrize(
    "changes",
    [
        {"outer_steps": 15},
        {"outer_steps": 0, "outer_steps_planned": 0},
        {"nodes": []},
        {"nodes": GOOD.nodes[:2]},
        {"nodes": other(state_digest="c" * 64)},
        {"nodes": other(ledger_head="c" * 64)},
        {"nodes": other(ledger_height=40)},
        {"nodes": [NODE | {"state_digest": None}] * 3},
        {"val_loss_last": 6.7},
        {"val_loss_first": None},
        {"val_loss_last": None},
        {"killed_in_reduce": False},
        {"killed_step_committed_without_victim": False},
        {"survivors_tokens_kept": False},
        {"kill_to_commit_s": 5.1},
        {"kill_to_commit_s": None},
        {"join_fetch_s": None},
        {"join_sources": 1},
        {"join_updates_replayed": 0},
        {"join_first_roster_step": None},
        {"refused_code": None},
        {"refused_code": "BUG"},
        {"refused_exit": 1},
        {"refused_says_what_to_do": False},
        {"seed_stopped_at_step": None},
        {"steps_after_seed_stopped": 1},
        {"blocks_trained_once": 0},
        {"blocks_trained_otherwise": 1},
        {"blocks_trained_otherwise": None},
    ],
    ids=str,
)
def test_one_bad_fact_fails_exactly_one_claim(changes: dict[str, Any]) -> None:
    spoiled = replace(GOOD, **changes)
    assert verdict(spoiled)["ok"] is False
    assert list(claims(spoiled).values()).count(False) == 1

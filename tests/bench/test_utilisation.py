"""The share of time spent in inner steps, computed from journals, and the runs that are
measured."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from p2ptrain.bench.processes import ProcessFailed
from p2ptrain.bench.utilisation import NodeTime, SyncMode, UtilisationSetting, run_file, spent
from p2ptrain.config.run_file import parse_run_file

SETTING = UtilisationSetting(layers=3, width=64, sequence=64, batch=2, steps=12, measured=2)
STREAMING = SyncMode(4, 2, 0.5, "int4", 0.4)


def committed(step: int, at_s: float, *, took_part: bool = True) -> dict[str, Any]:
    return {
        "event": "committed",
        "step": step,
        "monotonic_s": at_s,
        "took_part": took_part,
        "skipped": False,
        "compute_utilisation": 0.5,
    }


def trained(at_s: float, computed_s: float) -> dict[str, Any]:
    """Return a report of training that followed half a second of waiting for data."""
    told = {"tokens_per_s": SETTING.block_tokens / (0.5 + computed_s), "data_wait_s": 0.5}
    return {"event": "inner-step", "monotonic_s": at_s, "seconds": 99.0, **told}


JOURNAL = [
    trained(9.0, 1.0),
    committed(0, 10.0),
    {"event": "state", "monotonic_s": 11.0},
    trained(12.0, 1.5),
    trained(14.0, 2.0),
    committed(1, 15.0),
    trained(19.0, 2.5),
    committed(2, 20.0),
    trained(21.0, 1.0),
]


def test_trainers_own_times_are_compared_with_elapsed_time() -> None:
    assert spent(JOURNAL, SETTING.block_tokens, 0, 2) == NodeTime(10.0, 6.0, 3, 2, 0.5)
    assert spent(JOURNAL, SETTING.block_tokens, 1, 2) == NodeTime(5.0, 2.5, 1, 1, 0.5)


def test_node_that_was_left_out_of_a_step_gives_no_figure() -> None:
    left_out = [*JOURNAL[:-2], committed(2, 20.0, took_part=False)]
    with pytest.raises(ProcessFailed, match="left out"):
        spent(left_out, SETTING.block_tokens, 0, 2)


@pytest.mark.parametrize("mode", [SyncMode(), STREAMING])
def test_measured_runs_can_be_published(mode: SyncMode) -> None:
    run = parse_run_file(tomllib.loads(run_file(SETTING, mode, 4)))
    assert (run.codec.name, run.policy.participants_min) == (mode.codec, 4)
    asked = (mode.fragments, mode.overlap_steps, mode.mixing)
    assert (run.sync.fragments, run.sync.overlap_steps, run.sync.mixing) == asked
    assert run.inner.steps == SETTING.steps


def test_sync_modes_are_described_in_words() -> None:
    assert [str(SyncMode()), str(STREAMING)] == [
        "plain int8",
        "streaming int4, P = 4, τ = 2, α = 0.5",
    ]


def test_width_that_is_not_a_multiple_of_64_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        UtilisationSetting(3, 100, 64, 2, 12, 2)

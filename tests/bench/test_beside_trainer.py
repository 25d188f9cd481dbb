"""The speed of a trainer during a snapshot is computed from complete inner steps only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from p2ptrain.bench.beside_trainer import (
    Pauses,
    SnapshotTurn,
    StepTimes,
    lines,
    measure,
    with_steps,
)
from p2ptrain.bench.processes import ProcessFailed
from p2ptrain.bench.trainer import setting


@contextmanager
def saying(*ends: float) -> Iterator[StepTimes]:
    """Yield the step times of a process that prints these times and ends."""
    script = f"print(*{ends!r}, sep='\\n')"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    ticks = StepTimes(process)
    yield ticks
    ticks.end()


def test_interval_contains_only_steps_that_began_and_ended_in_it() -> None:
    with saying(1.0, 1.5, 2.25, 4.0) as ticks:
        with pytest.raises(ProcessFailed, match="the trainer ended"):
            ticks.wait_s(30.0)
        assert ticks.within(1.0, 4.0) == [0.5, 0.75, 1.75]
        assert ticks.within(1.1, 3.9) == [0.75]
        with pytest.raises(ProcessFailed, match="finished no inner step"):
            ticks.wait_for(1, 30.0)


def test_interval_without_a_step_is_repeated_a_few_times() -> None:
    with saying(1.0, 1.5, 2.25) as ticks:
        with pytest.raises(ProcessFailed, match="the trainer ended"):
            ticks.wait_s(30.0)
        stretches = iter([(1.1, 1.4), (0.0, 0.5), (1.0, 2.0)])
        assert with_steps(ticks, lambda: next(stretches)) == ((1.0, 2.0), [0.5])
        with pytest.raises(ProcessFailed, match="use a larger snapshot"):
            with_steps(ticks, lambda: (1.1, 1.4))


def test_each_snapshot_is_compared_with_the_steps_before_and_after() -> None:
    alone = [0.09, 0.11]
    turns = [
        SnapshotTurn(alone, [0.125], [0.1], 2.0),
        SnapshotTurn([0.15], [0.1, 0.1], [0.05], 4.0),
    ]
    told = {line.measure: line.value for line in lines(turns, 10**6)}
    name = "a trainer's inner-step rate while a snapshot is written"
    assert told == {
        name: pytest.approx(0.9),
        f"{name}, the median of the turns": pytest.approx(0.9),
        "its standard error": pytest.approx(0.1),
        "a snapshot of 8 MB during training": 3.0,
    }


@pytest.mark.needs_torch
def test_trainer_trains_while_a_snapshot_is_written(tmp_path: Path) -> None:
    pauses = Pauses(warm_s=0.1, settle_s=0.0, before_s=0.5)
    tiny = setting(1, 64, 16, 2, "fp32", "cpu", vocab=300)
    told = {line.measure: line.value for line in measure(tiny, 8 * 10**6, 1, tmp_path, pauses)}
    assert all(value > 0 for name, value in told.items() if name != "its standard error"), told
    assert not list(tmp_path.iterdir())

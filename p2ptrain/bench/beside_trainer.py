"""`p2ptrain bench snapshot --beside-trainer`: measure how much a snapshot slows the trainer.

A real trainer computes inner steps on all cores without a pause. This is the worst case, because a
trainer on a GPU does not use all cores. Meanwhile θ and m are repeatedly written to a store, as a
node writes them. Inner steps during a snapshot are compared with those just before and after it, so
that a machine that becomes busier does not distort the result.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from p2ptrain.bench.lines import FigureLine
from p2ptrain.bench.processes import ProcessFailed
from p2ptrain.bench.snapshot import state_of
from p2ptrain.bench.trainer import setting
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.state import OuterState, write_frozen
from p2ptrain.store import IdleThrottle, Store

FIRST_STEP_S_MAX = 120.0

TRIES_MAX = 20
"""Maximum number of tries to find a period that contains a whole inner step."""

Stretch = tuple[float, float]
"""Start and end of a period."""


def default_trainer() -> TrainerConfig:
    """Return a model of 4 M parameters on all cores. Many inner steps end during one snapshot."""
    sizes = setting(4, 256, 128, 4, "bf16", "cpu")
    return replace(sizes, threads=len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long the measurement waits."""

    warm_s: float = 15.0
    """Seconds to warm up: inner steps take 10 % longer in the first ten seconds."""
    settle_s: float = 3.0
    """Seconds to wait after a snapshot, because deleting its files is not part of its cost."""
    before_s: float = 5.0
    """Minimum seconds of a measurement without a snapshot. If the snapshot before it took longer,
    the measurement takes as long as that snapshot."""


USUAL = Pauses()


@dataclass(frozen=True, slots=True)
class SnapshotTurn:
    """Durations of the inner steps before, during and after a snapshot, and of the snapshot."""

    before: list[float]
    beside: list[float]
    after: list[float]
    snapshot_s: float

    @property
    def ratio(self) -> float:
        """Inner-step rate during the snapshot, divided by the rate without it."""
        alone = (statistics.mean(self.before) + statistics.mean(self.after)) / 2
        return alone / statistics.mean(self.beside)


class StepTimes:
    """The times at which inner steps of a process ended. The process prints these times."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._ends: list[float] = []
        self._more = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()

    def end(self) -> None:
        """End the process and the reader."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as told:
            for line in told:
                with self._more:
                    self._ends.append(float(line))
                    self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_for(self, count: int, seconds: float) -> None:
        """Wait until `count` more inner steps have ended. Raises ProcessFailed if this takes longer
        than `seconds`, or if the trainer ends."""
        with self._more:
            wanted = len(self._ends) + count
            self._more.wait_for(lambda: self._ended or len(self._ends) >= wanted, seconds)
            if len(self._ends) < wanted:
                why = "the trainer ended, or finished no inner step in time; its output is above"
                raise ProcessFailed(why)

    def wait_s(self, seconds: float) -> None:
        """Wait `seconds`. Raises ProcessFailed if the trainer ends in this time."""
        with self._more:
            if self._more.wait_for(lambda: self._ended, seconds):
                raise ProcessFailed("the trainer ended; its output is above")

    def within(self, start: float, end: float) -> list[float]:
        """Return the seconds of the steps that began and ended between these times."""
        with self._more:
            ends = list(self._ends)
        inside = [(a, b) for a, b in pairwise(ends) if start <= a and b <= end]
        return [b - a for a, b in inside]


@contextmanager
def training(config: TrainerConfig, warm_s: float) -> Iterator[StepTimes]:
    """Run a process that trains until the `with` block ends. Raises ProcessFailed."""
    command = [sys.executable, "-m", "p2ptrain.trainer.tools.ticking", json.dumps(asdict(config))]
    ticks = StepTimes(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    try:
        ticks.wait_for(1, FIRST_STEP_S_MAX)
        ticks.wait_s(warm_s)
        yield ticks
    finally:
        ticks.end()


def measure(
    config: TrainerConfig, numel: int, turns: int, folder: Path | None, pauses: Pauses = USUAL
) -> Iterator[FigureLine]:
    """Measure on the disk of `folder`, or of temporary files if None. Raises ProcessFailed."""
    state = state_of(numel)
    try:
        with training(config, pauses.warm_s) as ticks:
            seen = list(_turns(state, ticks, turns, folder, pauses))
    finally:
        state.close()
    yield from lines(seen, numel)


def _turns(
    state: OuterState, ticks: StepTimes, turns: int, folder: Path | None, pauses: Pauses
) -> Iterator[SnapshotTurn]:
    before = _alone(ticks, pauses.before_s, pauses.settle_s)
    for _ in range(turns):
        (begun, ended), beside = with_steps(ticks, partial(_write, state, folder))
        after = _alone(ticks, max(pauses.before_s, ended - begun), pauses.settle_s)
        yield SnapshotTurn(before, beside, after, ended - begun)
        before = after


def _alone(ticks: StepTimes, seconds: float, settle_s: float) -> list[float]:
    ticks.wait_s(settle_s)

    def passes() -> Stretch:
        start = time.monotonic()
        ticks.wait_s(seconds)
        return start, time.monotonic()

    return with_steps(ticks, passes)[1]


def with_steps(ticks: StepTimes, stretch: Callable[[], Stretch]) -> tuple[Stretch, list[float]]:
    """Call `stretch` until the period that it returns contains inner steps. Return that period, and
    the seconds of these steps. Raises ProcessFailed after `TRIES_MAX` calls."""
    for _ in range(TRIES_MAX):
        begun, ended = stretch()
        if steps := ticks.within(begun, ended):
            return (begun, ended), steps
    raise ProcessFailed(
        "no inner step began and ended while a snapshot was written: use a larger snapshot"
    )


def _write(state: OuterState, folder: Path | None) -> Stretch:
    """Write a snapshot as a node does. Return the times at which it began and was on disk."""
    with (
        tempfile.TemporaryDirectory(prefix="p2ptrain-bench-", dir=folder) as name,
        Store(Path(name) / "store") as store,
        state.freeze(store.chunk_bytes) as frozen,
    ):
        begun = time.monotonic()
        write_frozen(store, frozen, state.numel, {}, throttle=IdleThrottle())
        return begun, time.monotonic()


def lines(seen: list[SnapshotTurn], numel: int) -> Iterator[FigureLine]:
    ratios = [turn.ratio for turn in seen]
    steps = sum(len(turn.beside) for turn in seen)
    name = "a trainer's inner-step rate while a snapshot is written"
    against = f"before and after each of {len(seen)} snapshots ({steps} inner steps during them)"
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    yield FigureLine(name, statistics.mean(ratios), "ratio", against, {"standard_error": error})
    median = statistics.median(ratios)
    yield FigureLine(f"{name}, the median of the turns", median, "ratio", against)
    yield FigureLine("its standard error", error, "")
    seconds = statistics.median(turn.snapshot_s for turn in seen)
    yield FigureLine(f"a snapshot of {8 * numel / 1e6:,.0f} MB during training", seconds, "s")

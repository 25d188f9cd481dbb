"""Copy the outer steps of a series to a target, once or for as long as the run goes on.

The reports of peers and the held-out loss of an outer step arrive after the step has ended. A step
is copied once it is settled: when two later steps have ended, or after a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from p2ptrain.cli.history import opened_series
from p2ptrain.cli.tracking.targets import Target
from p2ptrain.observe.series import SeriesReader, StepRow

LATER_STEPS = 2
SETTLED_S = 60.0
LOOK_EVERY_S = 2.0


def copy_new(
    reader: SeriesReader, target: Target, first: int, now: float, *, everything: bool = False
) -> int:
    """Copy the settled outer steps from `first` on that the target lacks. Return their number. With
    `everything`, also copy those that are not settled yet."""
    rows = reader.steps(max(first, target.newest + 1))
    ready = [row for row in rows if everything or _is_settled(row, rows[-1].step, now)]
    for row in ready:
        target.write(row, reader.peer_steps(row.step, row.step))
    if ready:
        target.flush()
    return len(ready)


def _is_settled(row: StepRow, newest: int, now: float) -> bool:
    old = row.time is not None and now - row.time > SETTLED_S
    return old or newest - row.step >= LATER_STEPS


def copy_for_ever(
    home: Path,
    target: Target,
    first: int,
    *,
    now: Callable[[], float],
    rest: Callable[[float], object],
    copied: Callable[[int], None],
) -> None:
    """Copy outer steps until interrupted, and call `copied` with the number of each batch. `rest`
    sleeps between two looks; a look that finds nothing new reads a few rows."""
    while True:
        with opened_series(home) as reader:
            copied(copy_new(reader, target, first, now()))
        rest(LOOK_EVERY_S)

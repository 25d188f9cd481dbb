"""Run the arms that have no record yet, in parallel with other processes that do the same.

A process runs an arm while it holds the arm's lock. The kernel releases the lock when the process
ends for any reason, and the next process continues from the checkpoint. If all missing arms are
locked, further arms may depend on them, so the queue looks again after a few seconds.
"""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.research.learning.arms import arms
from scripts.research.learning.record import Record
from scripts.research.learning.results import read_results, write_result
from scripts.research.learning.search import Arm, Key
from scripts.research.learning.trial import Cut, run_trial

LOOK_EVERY_S = 5.0
"""Seconds between two searches for missing arms. This is short compared with the five minutes that
an arm takes."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Runs `comparisons` and the tuning that they depend on. `results` is only read. `arms` returns
    the arms that are known with these records."""

    folder: Path
    results: Path
    comparisons: Collection[str]
    arms: Callable[[dict[Key, Record]], list[Arm]] = arms

    def lacking(self) -> list[Arm]:
        """Return the known arms without a record, the most important first."""
        records = read_results(self.results, self.folder)
        wanted = {*self.comparisons, "tuning"}
        return [
            arm for arm in self.arms(records) if arm.comparison in wanted and arm.key not in records
        ]

    def work(self, stop: Callable[[], bool]) -> None:
        """Run arms until none is missing, or until `stop` returns True."""
        while not stop() and (lacking := self.lacking()):
            if not any(self._try(arm, stop) for arm in lacking):
                time.sleep(LOOK_EVERY_S)

    def _try(self, arm: Arm, stop: Callable[[], bool]) -> bool:
        """Run an arm. Return False if another process is running it."""
        with self._lock(arm) as ours:
            if not ours:
                return False
            if arm.key in read_results(self.results, self.folder):
                return True
            _say(f"{arm.folder}: started")
            try:
                place = self.folder / arm.folder
                record = run_trial(arm.name, arm.settings, place, self.folder, stop)
            except Cut:
                _say(f"{arm.folder}: interrupted; a later call continues from its checkpoint")
                return True
            write_result(record, place)
            (place / "checkpoint.npz").unlink(missing_ok=True)
            _say(f"{arm.folder}: loss {record.loss}, {record.cpu_s:.0f} CPU s")
            return True

    @contextmanager
    def _lock(self, arm: Arm) -> Iterator[bool]:
        place = self.folder / arm.folder
        place.mkdir(parents=True, exist_ok=True)
        with (place / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()

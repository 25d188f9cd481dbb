"""`scripts/compare`: run the missing arms, collect records, and make tables and plots.

After a signal, every process finishes its inner step and writes a checkpoint. The next call of the
script continues from there.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from scripts.research.learning.arms import COMPARISONS, arms
from scripts.research.learning.pictures import picture, picture_of_gaps
from scripts.research.learning.queue import Queue
from scripts.research.learning.report import insert, outcome, tables
from scripts.research.learning.results import collect, read_results


class Work(Protocol):
    """A queue that runs the missing arms, such as `Queue`."""

    def work(self, stop: Callable[[], bool]) -> None: ...


class Started(Protocol):
    """A process that this process has started."""

    def terminate(self) -> None: ...

    def wait(self) -> object: ...


def main(
    arguments: Sequence[str] = tuple(sys.argv[1:]),
    *,
    queue: Callable[[Path, Path, list[str]], Work] = Queue,
    start: Callable[[list[str]], Started] = subprocess.Popen,
    parent: Callable[[], int] = os.getppid,
) -> None:
    """Carry out the `arguments` of the command. `queue` runs arms, `start` starts a process, and
    `parent` returns the process that started this one."""
    chosen = _arguments(arguments)
    if chosen.list:
        _list(chosen)
    elif chosen.collect:
        _collect(chosen)
    else:
        again = [sys.executable, "-m", "scripts.research.learning", *arguments]
        part = ["--processes", "1", "--part-of", str(os.getpid())]
        stop = _stop(chosen.minutes, chosen.part_of, parent)
        others = [start([*again, *part]) for _ in range(chosen.processes - 1)]
        _work(queue(chosen.folder, chosen.results, chosen.comparisons), others, stop)


def _work(queue: Work, others: list[Started], stop: Callable[[], bool]) -> None:
    """Run arms, as the processes `others` do. End these processes after `stop` returned True."""
    try:
        queue.work(stop)
    finally:
        for other in others:
            if stop():
                other.terminate()
            other.wait()


def _stop(minutes: float, part_of: int | None, parent: Callable[[], int]) -> Callable[[], bool]:
    """Return a function that says whether to stop: after `minutes`, a signal, or if `part_of` ends.

    `part_of` is the process that started this one to share its work. It is None for a process that
    a user started, which continues even if the user's shell ends.
    """
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: asked.append(got))
    until = time.monotonic() + 60 * minutes
    return lambda: bool(asked) or time.monotonic() > until or part_of not in (None, parent())


def _collect(chosen: argparse.Namespace) -> None:
    records = read_results(chosen.results, chosen.folder)
    named = {arm.key: arm.comparison for arm in arms(records)}
    collect([(named[key], each) for key, each in records.items() if key in named], chosen.results)
    kept = [each for key, each in records.items() if key in named]
    plots = {"gaps": picture_of_gaps(kept)}
    for comparison in COMPARISONS:
        of_it = [each for each in kept if named[each.arm, each.seed, each.digest] == comparison]
        if of_it and comparison != "tuning":
            plots[comparison] = picture(comparison, of_it)
    drawn = {name: plot for name, plot in plots.items() if plot is not None}
    for name, plot in drawn.items():
        (chosen.results / f"{name}.svg").write_text(plot)
    page = chosen.results.with_suffix(".md")
    if page.exists():
        shown = [f"![{name}]({chosen.results.name}/{name}.svg)\n" for name in drawn]
        text = insert(page.read_text(), "outcome", outcome(kept))
        text = insert(text, "plots", "\n".join(shown))
        page.write_text(insert(text, "tables", tables(kept)))


def _list(chosen: argparse.Namespace) -> None:
    records = read_results(chosen.results, chosen.folder)
    for arm in arms(records):
        record = records.get(arm.key)
        state = "missing" if record is None else f"loss {record.loss}"
        sys.stdout.write(f"{arm.comparison:8} {arm.folder:34} {state}\n")


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/compare", description=__doc__)
    told = "; ".join(f"{name}: {what}" for name, what in COMPARISONS.items())
    parser.add_argument("comparisons", nargs="*", default=list(COMPARISONS), help=told)
    parser.add_argument(
        "--folder", type=Path, default=Path("build/learning"), help="folder for the work"
    )
    parser.add_argument("--results", type=Path, default=Path("docs/results/learning"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this many minutes")
    parser.add_argument("--part-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="list what exists and what is missing")
    parser.add_argument("--collect", action="store_true", help="write records, tables and plots")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.comparisons) - set(COMPARISONS):
        parser.error(f"there is no comparison {', '.join(sorted(unknown))}")
    return chosen


if __name__ == "__main__":
    main()

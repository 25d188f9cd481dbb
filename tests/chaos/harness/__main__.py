"""Inject faults into real nodes at every point of the protocol, and print the results.

    python -m tests.chaos.harness                                 everything: about 70 minutes
    python -m tests.chaos.harness --points '*:send-*' --faults SIGKILL --scenarios none
    python -m tests.chaos.harness --part 1/3 --json part1.jsonl   every third case
    python -m tests.chaos.harness --sum part1.jsonl part2.jsonl   combine results of several runs

Without root, or where namespaces are not allowed, all nodes run on loopback and links are not cut.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

from p2ptrain.testing.network_namespaces import NodeNetwork, opened
from tests.chaos.harness import report, scenarios, strike, verdict
from tests.chaos.harness.crew import Crew, crew
from tests.chaos.harness.modes import KINDS, MODES, STAND_IN
from tests.chaos.harness.points import DEED, Role, all_points
from tests.chaos.harness.strike import Case, Fault


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.harness",
        description="Inject faults into real nodes at every point of the protocol.",
        epilog="points: " + " ".join(map(str, all_points())),
    )
    parser.add_argument("--points", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--faults", nargs="+", type=Fault, default=list(Fault), metavar="FAULT")
    parser.add_argument("--roles", nargs="+", type=Role, default=list(Role), metavar="ROLE")
    parser.add_argument(
        "--scenarios",
        nargs="+",
        default=list(scenarios.SCENARIOS),
        choices=[*scenarios.SCENARIOS, "none"],
    )
    parser.add_argument("--mode", choices=MODES, default="plain", help="how the run averages")
    parser.add_argument(
        "--trainers",
        choices=KINDS,
        default=STAND_IN,
        help="kind of trainer: a thread that sends real frames, or a process with torch",
    )
    parser.add_argument(
        "--part", default="1/1", metavar="K/N", help="run every Nth case, starting with the Kth"
    )
    parser.add_argument("--loopback", action="store_true", help="run on loopback, without cuts")
    parser.add_argument("--inner-step-s", type=float, default=0.2, metavar="S")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="append a line for each case to this file"
    )
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="keep the nodes' homes in this folder"
    )
    parser.add_argument(
        "--sum", nargs="+", type=Path, metavar="FILE", help="summarise earlier lines"
    )
    return parser.parse_args()


def cases(given: argparse.Namespace, *, can_cut: bool) -> list[Case]:
    """Return the requested cases. By default, kills come first, since they are quick."""
    found = [
        Case(point, fault, role)
        for fault in given.faults
        if can_cut or fault is not Fault.CUT
        for point in all_points()
        if any(fnmatch(str(point), pattern) for pattern in given.points)
        for role in given.roles
        if role in DEED[point.deed].roles
    ]
    number, _, parts = given.part.partition("/")
    return found[int(number) - 1 :: int(parts)]


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, _end)
    if given.sum:
        return _sum(given.sum)
    folder = given.dir or Path(tempfile.mkdtemp(prefix="p2ptrain-chaos-"))
    with opened(5, loopback=given.loopback) as place:
        lines = list(_play(given, folder, place))
    wrong = [trouble for line in lines for trouble in line["troubles"]]
    _tell(lines)
    if given.dir is None and not wrong:
        shutil.rmtree(folder)
    elif wrong:
        _say(f"journals and outputs are in {folder}")
    return 1 if wrong else 0


def _end(*_: object) -> None:
    """Exit, ignoring further signals: they would interrupt the clean-up and leave nodes running."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def _play(given: argparse.Namespace, folder: Path, place: NodeNetwork) -> Iterator[dict[str, Any]]:
    """Yield a line for each case and each scenario, and one for the final checks."""
    _say(
        f"five nodes with {given.trainers} trainers in {place.name}"
        + ("" if place.can_cut else ": links cannot be cut there")
    )
    with (given.json or Path("/dev/null")).open("a") as file:
        mode = MODES[given.mode]
        with crew(
            folder,
            place,
            inner_step_s=given.inner_step_s,
            mode=mode,
            trainers=given.trainers,
        ) as five:
            for case in cases(given, can_cut=place.can_cut):
                account = strike.play(five, case)
                yield _kept(file, report.line_of(account))
                if account.troubles:
                    _mend(five)
            for name in given.scenarios:
                if name in scenarios.SCENARIOS:
                    yield _kept(file, report.line_of_scenario(scenarios.play(five, name)))
        end = {"case": "final checks", "troubles": verdict.at_the_end(five)}
        yield _kept(file, end)


def _kept(file: IO[str], line: dict[str, Any]) -> dict[str, Any]:
    file.write(json.dumps(line) + "\n")
    file.flush()
    _say(report.in_words(line))
    return line


def _mend(five: Crew) -> None:
    """Bring all nodes back for the next case, after a trouble that has been reported."""
    for node in five.nodes:
        if node.running:
            node.signal(signal.SIGCONT)
        if five.place.can_cut:
            five.place.heal(node.number)
        if not node.running:
            five.start(node)


def _sum(files: list[Path]) -> int:
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    _tell(lines)
    return 1 if any(line["troubles"] for line in lines) else 0


def _tell(lines: list[dict[str, Any]]) -> None:
    accounts = [report.account_of(line) for line in lines if "point" in line]
    measures = list(report.measures(accounts)) + list(report.scenario_measures(lines))
    for measure in measures:
        sys.stdout.write(json.dumps(measure, ensure_ascii=False) + "\n")
    _say(report.table(measures))
    for miss in report.misses(accounts):
        _say(f"missed: {miss}")
    for line in lines:
        for trouble in line["troubles"]:
            _say(f"WRONG  {line['case']}: {trouble}")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

"""Measure the acceptance criteria of an issue and print a line of JSON for each result.

    scripts/accept siege                       measure everything; takes several hours
    scripts/accept siege --quick               measure less, in a few minutes
    scripts/accept siege --only attack         run only measures with this word in their name
    scripts/accept siege --read siege=FILE     use an earlier result instead of measuring again
    scripts/accept reach                       measure how nodes behind NATs work; as root
    scripts/accept reach --list                show what it measures, and how long that takes
    scripts/accept page                        measure the page and pauses of nodes, in half an hour

These results of `siege` can be read: `test` (a log of scripts/test), `demo` (the JSON file of
scripts/demo), `matrix` (a log of scripts/test_matrix), `siege` (the lines of scripts/siege), `fuzz`
(a log of scripts/fuzz). The lines of `test`, `demo` and `matrix` have `"read": true` if they come
from such an earlier result. The modules `reach` and `page` say which of their results can be read.
All lines of a run with `--quick` have `"quick": true`. The exit status is 1 if a line is not ok.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.acceptance.measures.registry import ACCEPTANCES
from tests.acceptance.measures.setting import Line, Setting, select


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/accept", description="Measure the acceptance criteria of an issue."
    )
    parser.add_argument("name", choices=sorted(ACCEPTANCES))
    parser.add_argument("--quick", action="store_true", help="measure less, in a few minutes")
    parser.add_argument(
        "--seeds",
        type=int,
        default=10_000,
        help="random seeds (simulated runs) of each simulation campaign (default: 10,000)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="processes that simulate at the same time (default: 1)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="run only measures whose name contains one of these words",
    )
    parser.add_argument(
        "--read", nargs="+", default=[], metavar="NAME=FILE", help="use an earlier result"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the measures and how long they take, and end"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs in this folder")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    if given.list:
        for each in select(ACCEPTANCES[given.name], given.only):
            sys.stdout.write(f"{each.name:30} {each.takes:12} {each.takes_quick}\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = given.keep or Path(tempfile.mkdtemp(prefix="p2ptrain-accept-"))
    folder.mkdir(parents=True, exist_ok=True)
    read = {name: Path(path) for name, _, path in (each.partition("=") for each in given.read)}
    setting = Setting(folder, given.quick, given.seeds, given.processes, read)
    bad = 0
    for measure in select(ACCEPTANCES[given.name], given.only):
        for line in measure.take(setting):
            bad += not line["ok"]
            _tell(line, quick=given.quick)
    if given.keep is None and not bad:
        shutil.rmtree(folder, ignore_errors=True)
    elif bad:
        sys.stderr.write(f"{bad} lines are not ok; see the logs in {folder}\n")
    return 1 if bad else 0


def _tell(line: Line, *, quick: bool) -> None:
    whole = line | ({"quick": True} if quick else {})
    sys.stdout.write(json.dumps(whole, ensure_ascii=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

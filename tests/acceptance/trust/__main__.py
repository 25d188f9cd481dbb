"""Measure proofs and print a table, with a row for each result.

    scripts/trust                       run all parts, in a few minutes of processor time
    scripts/trust --only texts          run only the parts that are named
    scripts/trust --json                print a line of JSON for each result

The exit status is 1 if a requirement is not met. The small model that the parts use is trained once
and kept in build/trust.
"""

from __future__ import annotations

import argparse
import json
import sys

from tests.acceptance.measures.setting import Line
from tests.acceptance.trust.registry import PARTS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/trust", description="Measure which lies proofs find."
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(PARTS),
        choices=list(PARTS),
        metavar="NAME",
        help=f"run only these parts: {', '.join(PARTS)}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def row(line: Line) -> str:
    """Return a row of the table. A line without a requirement is shown for information."""
    verdict = ("met" if line["ok"] else "NOT MET") if line["required"] else ""
    return f"| {line['measure']} | {line['value']} | {line['required']} | {verdict} |"


def main() -> int:
    given, bad = arguments(), 0
    if not given.json:
        sys.stdout.write("| measure | value | required | verdict |\n|---|---|---|---|\n")
    for name in given.only:
        for line in PARTS[name]():
            bad += not line["ok"]
            text = json.dumps(line, ensure_ascii=False) if given.json else row(line)
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure how often and how fast two nodes behind NATs connect by hole punching.

    python -m tests.wan.harness.punching                            all pairs, 40 tries of 4 streams
    python -m tests.wan.harness.punching --tries 2 cone:cone        one pair

Needs root. Prints a line of JSON for each pair, and a table for docs/results/reach.md. `in_time`
counts the tries that took at most 2 s with their coordination.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

from tests.wan.harness import emulator

PAIRS = (
    "cone:cone",
    "cone/rand:cone/rand",
    "cone/rst:cone/rst",
    "cone+cone/rand:cone",
    "fw:fw",
    "fw:fw/rst",
    "full:sym",
    "full:cone/rst",
)
"""The NAT of one node and that of the other, as wan.c names them."""

NETWORK = ("-n", "3", "-d", "20", "-j", "2")
PAIR_S = 1800.0
"""Timeout of one pair in seconds. 40 tries take about 40 s."""

IN_TIME_MS = 2000.0
"""The required time of a try in milliseconds, from the offer until all streams are open."""

FAULTS_MAX = 5
"""Maximum number of different faults that are printed for a pair."""

TIMES = "ms", "whole_ms"
HEAD = "| NATs | connected | punching, ms: median (max) | with coordination |\n|---|---|---|---|\n"

SCRIPT = """
run() { ip netns exec wan$1 "$PYTHON" -m tests.wan.harness.punch_end "${@:2}"; }
run 0 meeting 10.77.0.1 & MEETING=$!
until ip netns exec wan0 bash -c '</dev/tcp/10.77.0.1/4202' 2>/dev/null; do sleep 0.2; done
run 2 bob 10.77.0.1 "$@" >/dev/null & BOB=$!
run 1 ann 10.77.0.1 "$@"
wait $BOB $MEETING
"""


def measure(pair: str, tries: int, streams: int) -> list[dict[str, object]]:
    """Return the lines of Ann, who dials. Raises CalledProcessError if a program fails."""
    one, _, other = pair.partition(":")
    behind = ("-N", f"{one}:1", "-N", f"{other}:2")
    ends = ("--tries", str(tries), "--streams", str(streams))
    words = emulator.words((*NETWORK, *behind), ("bash", "-c", SCRIPT, "bash", *ends))
    done = subprocess.run(
        ["env", f"PYTHON={sys.executable}", *words],
        cwd=emulator.ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=PAIR_S,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def summary(pair: str, lines: list[dict[str, object]]) -> dict[str, object]:
    """Return the numbers of a pair. A try counts as connected if all its streams did."""
    good = [line for line in lines if line["good"] == line["of"]]
    found: dict[str, object] = {"pair": pair, "tries": len(lines), "connected": len(good)}
    found["in_time"] = sum(float(str(line["whole_ms"])) <= IN_TIME_MS for line in good)
    for name in TIMES if good else ():
        values = [float(str(line[name])) for line in good]
        found |= {f"{name}_p50": round(median(values), 1), f"{name}_max": max(values)}
    faults = {str(fault) for line in lines for fault in line["faults"]}  # type: ignore[attr-defined]
    return found | {"faults": sorted(faults)[:FAULTS_MAX]}


def row(found: dict[str, object]) -> str:
    pair = str(found["pair"]).replace(":", " × ")
    times = [
        f"{found[f'{name}_p50']:.0f} ({found[f'{name}_max']:.0f})" if found["connected"] else "–"
        for name in TIMES
    ]
    return f"| {pair} | {found['connected']} of {found['tries']} | {' | '.join(times)} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.punching")
    parser.add_argument("pairs", nargs="*", default=PAIRS, metavar="NAT:NAT")
    parser.add_argument("--tries", type=int, default=40)
    parser.add_argument("--streams", type=int, default=4)
    given = parser.parse_args()
    if missing := emulator.missing():
        sys.stderr.write(f"the emulator cannot run here: {missing}\n")
        return 4
    found = []
    for pair in given.pairs:
        found.append(summary(pair, measure(pair, given.tries, given.streams)))
        sys.stdout.write(json.dumps(found[-1]) + "\n")
        sys.stdout.flush()
    sys.stdout.write(HEAD + "\n".join(map(row, found)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

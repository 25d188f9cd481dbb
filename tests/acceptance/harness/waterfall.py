"""Compare the sums of a waterfall with the nodes' journals:
`python -m tests.acceptance.harness.waterfall [--steps N]`.

A seed and three nodes with stand-in trainers make some outer steps. The rows of each peer in
another node's series are summed, and compared with the sums of that peer's own journal. The program
prints a line of JSON. `difference` is the largest relative difference of any sum of at least
`LEAST` milliseconds or bytes: rows have whole milliseconds, so small sums differ by up to one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from tests.node.swarms.test_swarm_series import Sums, waterfall

LEAST = 50.0


def differences(sums: dict[str, Sums]) -> dict[str, float]:
    """Return the relative difference of each sum that is large enough."""
    return {
        f"{name} {each}": round(abs(both.told[each] - value) / value, 5)
        for name, both in sums.items()
        for each, value in both.said.items()
        if value >= LEAST
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p2ptrain-waterfall-") as folder:
        _, _, sums = trio.run(partial(waterfall, Path(folder), given.steps))
    found = differences(sums)
    worst = max(found.values())
    told = {"steps": given.steps, "difference": worst, "differences": found}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()

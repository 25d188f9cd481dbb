"""`python -m tests.exploration.harness --bound TIMEOUTS,CRASHES [--worlds-max N] [--witnesses]
[--mutant NAME]`

If the search reaches a world that breaks a rule, it prints the steps that lead there and exits with
status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from tests.exploration.harness.search import Bound, explore
from tests.simulation.defects.mutants import MUTANTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore, and print the number of visited worlds and the steps to the first fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration.harness")
    parser.add_argument("--bound", default="1,1", metavar="TIMEOUTS,CRASHES")
    parser.add_argument("--worlds-max", type=int, metavar="N")
    parser.add_argument("--mutant", choices=[mutant.name for mutant in MUTANTS])
    parser.add_argument(
        "--witnesses", action="store_true", help="let members remember the signatures of others"
    )
    options = parser.parse_args(arguments)
    timeouts, crashes = map(int, options.bound.split(","))
    planted = next((it.planted() for it in MUTANTS if it.name == options.mutant), nullcontext())
    with planted:
        found = explore(
            Bound(timeouts, crashes),
            witnesses=options.witnesses,
            worlds_max=options.worlds_max,
        )
    sys.stdout.write(found.text() + "\n")
    if found.fault:
        sys.stdout.write("\n".join([*found.story, f"fault: {found.fault}"]) + "\n")
    return 1 if found.fault else 0


if __name__ == "__main__":
    raise SystemExit(main())

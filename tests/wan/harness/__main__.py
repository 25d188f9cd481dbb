"""Run a command on emulated nodes; tests/wan/wan.c describes the options.

    python -m tests.wan.harness -n 3 -d 20 -j 2 -N cone:1 -N sym:2 -- COMMAND

COMMAND enters a node with `ip netns exec wan1 …`. The command needs root.
"""

from __future__ import annotations

import os
import sys

from tests.wan.harness import emulator


def main() -> int:
    if "--" not in sys.argv:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    split = sys.argv.index("--")
    if missing := emulator.missing():
        sys.stderr.write(f"the emulator cannot run here: {missing}\n")
        return 4
    words = emulator.words(sys.argv[1:split], sys.argv[split + 1 :])
    os.execvp(words[0], words)


if __name__ == "__main__":
    sys.exit(main())

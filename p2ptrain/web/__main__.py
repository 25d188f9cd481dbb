"""`python -m p2ptrain.web`: serve the page of a node, at low priority."""

from __future__ import annotations

import os
import sys

NICE = 10
"""Under full load, the page gets a tenth of the processor time that a thread of the trainer gets:
enough for one reader, and little enough not to be noticed."""


def run() -> int:
    os.nice(NICE)  # Before the imports, which take a second of processor time on a slow machine.
    from p2ptrain.web.main import main

    return main()


if __name__ == "__main__":
    sys.exit(run())

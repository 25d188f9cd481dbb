"""`python -m p2ptrain.notify`: send messages about a node to its owner, at low priority."""

from __future__ import annotations

import os
import sys

from p2ptrain.notify.main import main

NICE = 10

if __name__ == "__main__":
    os.nice(NICE)
    sys.exit(main())

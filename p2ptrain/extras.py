"""Packages that p2ptrain does not bring along, and how the Python that runs here gets one.

A bare `pip` belongs to another Python as often as not: ours lives in a folder of its own.
"""

from __future__ import annotations

import shlex
import sys


def install(package: str) -> str:
    """The command that installs `package` where we would find it."""
    return shlex.join([sys.executable, "-m", "pip", "install", package])

"""The command that installs an optional package for the Python that runs here.

A bare `pip` often belongs to another Python: ours lives in a folder of its own.
"""

from __future__ import annotations

import shlex
import sys


def install(package: str) -> str:
    """Return the command that installs `package` for the Python that runs this program."""
    return shlex.join([sys.executable, "-m", "pip", "install", package])

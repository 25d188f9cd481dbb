"""The command that installs an optional package for the Python that runs this program.

A bare `pip` often belongs to a different Python, since ours is usually in a virtual environment.
"""

from __future__ import annotations

import shlex
import sys


def install(package: str) -> str:
    """Return the command that installs `package` for the Python that runs this program."""
    return shlex.join([sys.executable, "-m", "pip", "install", package])

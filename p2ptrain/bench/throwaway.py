"""A temporary environment for the libraries with which a benchmark compares p2ptrain.

Python in it can also import the packages that are installed here (above all torch), but prefers the
packages of the temporary environment.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from p2ptrain.bench.processes import ProcessFailed

INSTALL_S_MAX = 600.0
WORDS_MAX = 300


@contextmanager
def environment_with(packages: Sequence[str]) -> Iterator[str]:
    """Yield the path of Python in a temporary environment with `packages` (pip requirements).

    Raises ProcessFailed: venv or pip failed.
    """
    with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-env-") as folder:
        _run([sys.executable, "-m", "venv", folder])
        python = str(Path(folder) / "bin" / "python")
        places = sysconfig.get_paths(vars={"base": folder, "platbase": folder})
        here = sysconfig.get_paths()["purelib"]
        (Path(places["purelib"]) / "beside.pth").write_text(here + "\n")
        _run([python, "-m", "pip", "install", "--quiet", *packages])
        yield python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ProcessFailed(f"{command[2]}: {exc}") from exc
    if done.returncode:
        raise ProcessFailed(f"{command[2]}: {(done.stderr or done.stdout).strip()[-WORDS_MAX:]}")

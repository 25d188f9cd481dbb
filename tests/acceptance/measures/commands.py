"""Measure the processor time of the commands that users call often."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.measures.setting import ROOT, Line, Setting, line

CPU_S_MAX = 0.2
RUNS = 5
"""Number of runs. The fastest counts: other programs make a command slower, but never faster."""


def cpu_times(setting: Setting) -> Iterator[Line]:
    """Measure `--help`, `id`, `explain` and `status`, the last one with a node of 24 members."""
    required = f"at most {CPU_S_MAX:g} s"
    with tempfile.TemporaryDirectory(prefix="p2ptrain-commands-") as folder, _node(folder) as home:
        for words in (["--help"], ["id"], ["explain", "NET-REFUSED"], ["status"]):
            name = f"CPU of p2ptrain {words[0]}, s"
            at = ["--home", home] if words[0] in ("id", "status") else []
            try:
                value = min(cpu_s(*words, *at) for _ in range(RUNS))
            except OSError as exc:
                yield line(name, f"not measured: {exc}", required, False)
                continue
            yield line(name, round(value, 3), required, value <= CPU_S_MAX)


def cpu_s(*words: str) -> float:
    """Return the processor time of one command. Raises OSError: the command failed."""
    command = [sys.executable, "-m", "p2ptrain.cli", *words]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise OSError(f"it ended with status {process.returncode}")
    return used.ru_utime + used.ru_stime


@contextmanager
def _node(folder: str) -> Iterator[str]:
    """Run a node with a control socket, and return its home."""
    words = [sys.executable, "-m", "tests.web.harness.page_node", str(Path(folder) / "node")]
    with subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()

"""The surroundings of a command: the terminal, the machine, and the program of a node.

`main` sets an `Outside` for the duration of a command. The command calls `outside()` instead of
using stdin, the disk and so on directly, so that a test can pass other surroundings to `main`. This
module does not import anything slow.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from p2ptrain.config.node import NodeConfig


def _run_node(config: NodeConfig) -> int:
    from p2ptrain.node.main import run_node

    return run_node(config)


def _memory_free_bytes() -> int:
    from p2ptrain.prepare.machine_check import memory_free_bytes

    return memory_free_bytes()


def _disk_free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


@dataclass(frozen=True, slots=True)
class Outside:
    run_node: Callable[[NodeConfig], int] = _run_node
    """Runs a node to its end and returns the exit status."""
    stdin: TextIO | None = None
    """The stream from which input is read; None means `sys.stdin` at the time of the call."""
    ask: Callable[[str], str] = input
    """Shows a prompt at the terminal and returns the user's line."""
    memory_free_bytes: Callable[[], int] = _memory_free_bytes
    disk_free_bytes: Callable[[Path], int] = _disk_free_bytes
    is_installed: Callable[[str], bool] = _is_installed
    """Says whether a Python package can be imported."""
    python: str = sys.executable
    """The interpreter for programs that a command starts."""

    @property
    def typed(self) -> TextIO:
        return sys.stdin if self.stdin is None else self.stdin


USUAL = Outside()

_NOW = ContextVar("outside", default=USUAL)


def outside() -> Outside:
    """Return the `Outside` of the command that is running."""
    return _NOW.get()


@contextmanager
def placed_in(around: Outside) -> Iterator[None]:
    """Let `outside()` return `around` inside the `with` block."""
    token = _NOW.set(around)
    try:
        yield
    finally:
        _NOW.reset(token)

"""Write lines for users to stderr, which may be a log file on a full disk.

A message that cannot be written must not end a node, and must not change the exit status of a
program that ends with an error. Everything important is also in the journal.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def write_line(text: str) -> None:
    """Write one line to stderr. If the disk is full, the line is lost, or written later with
    another line."""
    with disk_may_be_full():
        if sys.stderr is not None:  # It is None if the program was started with stderr closed.
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def disk_may_be_full() -> suppress:
    """Return a context that ignores any OSError, for libraries that write to stderr themselves."""
    return suppress(OSError)


def give_up_unwritten() -> None:
    """Flush stderr. If that fails, drop the unwritten text, because Python flushes stderr again
    when it exits, and exits with status 120 if that fails. Call this last."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

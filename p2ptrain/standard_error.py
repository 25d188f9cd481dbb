"""Lines for people on stderr, which may be a log file on a full disk.

A message that cannot be written must not change what the program does: neither end a node nor
replace the exit status of the error that it describes. The journal has what matters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def write_line(text: str) -> None:
    """Write one line to stderr. A line that the disk has no room for is written with the next one
    that fits, or lost.
    """
    with disk_may_be_full():
        if sys.stderr is not None:  # It is None if the program was started with stderr closed.
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


@contextmanager
def disk_may_be_full() -> Iterator[None]:
    """Ignore an OSError of stderr, for the writers of other libraries."""
    with suppress(OSError):
        yield


def give_up_unwritten() -> None:
    """Write what is left, or drop it. Call this last.

    Python flushes stderr once more when it ends, and exits with status 120 if that fails.
    """
    if sys.stderr is None:
        return
    try:
        sys.stderr.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

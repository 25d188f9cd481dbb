"""Print an error: its code, what happened, evidence, likely cause, what to do, where to read more.

    error[NET-REFUSED] none of the 2 bootstrap addresses answered
      tried   /ip4/203.0.113.7/tcp/4201/p2p/12D3…  refused after 31 ms
      likely  the organiser's seed is down. This is not your machine's fault.
      do      wait, or ask for a fresh invite
      more    p2ptrain explain NET-REFUSED

Parts of an error may have come from a peer, so unprintable characters are replaced.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TextIO

from p2ptrain.errors import P2PTrainError
from p2ptrain.standard_error import disk_may_be_full

LABELS = ("tried", "seen")
"""Labels with which a line of evidence may begin; a line without a label gets "seen"."""

LINE_CHARACTERS_MAX = 400


def error_lines(error: P2PTrainError) -> list[str]:
    """Return the error as lines of plain text."""
    return [f"error[{error.code}] {printable(error.what)}", *_details(error)]


def _details(error: P2PTrainError) -> Iterator[str]:
    for line in error.evidence:
        label, _, rest = line.partition(" ")
        if label not in LABELS:
            label, rest = "seen", line
        yield f"  {label:<7} {printable(rest.strip())}"
    for label, text in (("likely", error.likely), ("do", error.do)):
        if text:
            yield f"  {label:<7} {printable(text)}"
    yield f"  {'more':<7} p2ptrain explain {error.code}"


def error_json(error: P2PTrainError) -> dict[str, object]:
    """Return the error for programs: `--json` prints it on stdout."""
    return {
        "error": {
            "code": error.code,
            "what": error.what,
            "evidence": list(error.evidence),
            "likely": error.likely,
            "do": error.do,
        }
    }


def printable(text: str) -> str:
    """Return `text` on one line of bounded length, without control characters."""
    shown = "".join(letter if letter.isprintable() else "·" for letter in text)
    return shown if len(shown) <= LINE_CHARACTERS_MAX else shown[: LINE_CHARACTERS_MAX - 1] + "…"


def show_error(error: P2PTrainError, stream: TextIO | None = None) -> None:
    """Write the error to stderr, its first words in red if the terminal has colours. If the process
    was started with stderr closed, do nothing.
    """
    stream = stream or sys.stderr
    if stream is None:
        return
    head, *details = error_lines(error)
    if coloured(stream):
        mark, bracket, rest = head.partition("]")
        head = f"\033[1;31m{mark}{bracket}\033[0m{rest}"
    with disk_may_be_full():
        print(head, *details, sep="\n", file=stream, flush=True)


def coloured(stream: TextIO) -> bool:
    """Return whether to use colours: on a terminal that is not dumb, unless NO_COLOR is set."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

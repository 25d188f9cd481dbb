"""Show the findings of `p2ptrain doctor`: as lines for people, and as a map for programs.

✓ memory           16.6 GB with swap, of which 9.1 GB are free now
✗ data port        port 4202 is in use: nginx (process 812) listens on it
              fix  stop that program, or choose another port, such as 4203
             more  p2ptrain explain PORT-IN-USE
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from p2ptrain.cli.rendering import coloured, printable

if TYPE_CHECKING:
    from p2ptrain.doctor.finding import Finding

MARKS = {"good": ("✓", "32"), "warning": ("!", "33"), "fault": ("✗", "31")}
"""The mark of each level, and its colour on a terminal."""
PLAIN_MARKS = {"✓": "ok", "!": "!", "✗": "x"}
"""Marks for a terminal that cannot show the usual ones."""

NAME_COLUMNS = 18
WIDTH_MIN = 40


@dataclass(frozen=True, slots=True)
class Look:
    """How lines are shown. `width` is None if lines are not wrapped, as in a file or a pipe."""

    width: int | None = None
    has_colours: bool = False
    is_ascii: bool = False

    @classmethod
    def of_terminal(cls) -> Look:
        stdout = sys.stdout
        width = shutil.get_terminal_size().columns if stdout.isatty() else None
        try:
            "✓✗".encode(stdout.encoding or "ascii")
        except UnicodeEncodeError:
            return cls(width, coloured(stdout), True)
        return cls(width, coloured(stdout))


def lines(finding: Finding, look: Look) -> Iterator[str]:
    """Yield the lines of one finding. Peers' texts in it cannot control the terminal."""
    mark, colour = MARKS[finding.level]
    shown = PLAIN_MARKS[mark] if look.is_ascii else mark
    gap = " " * (3 - len(shown))
    head = f"{shown}{gap}{finding.name:<{NAME_COLUMNS}}  "
    first, *rest = _wrapped(head, finding.said, look)
    if look.has_colours:
        first = f"\033[{colour}m{shown}\033[0m{first[len(shown) :]}"
    yield first
    yield from rest
    for label, text in (("fix", finding.fix), ("more", _more(finding))):
        if text:
            yield from _wrapped(f"{label:>{NAME_COLUMNS + 3}}  ", text, look)


def _more(finding: Finding) -> str:
    return f"p2ptrain explain {finding.code}" if finding.code else ""


def _wrapped(head: str, text: str, look: Look) -> list[str]:
    """Return `head` and `text`, wrapped so that further lines begin below the text. A word that is
    longer than a line, such as an address, is not cut, so that it can be copied."""
    words = printable(text)
    if look.width is None:
        return [head + words]
    width = max(look.width - len(head), WIDTH_MIN)
    first, *rest = textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False) or [
        ""
    ]
    return [head + first, *(" " * len(head) + line for line in rest)]


def verdict(findings: Sequence[Finding], seconds: float, *, asked: bool) -> str:
    """Return the last line. `asked`: whether the user gave an address of a run."""
    counts = Counter(str(each.level) for each in findings)
    faults, warnings = counts["fault"], counts["warning"]
    if faults:
        what = "the line" if faults == 1 else f"the {faults} lines"
        said = f"This machine cannot take part yet: repair {what} marked ✗."
    elif warnings:
        what = "the line" if warnings == 1 else f"the {warnings} lines"
        said = f"A node can run here. Read {what} marked ! first."
    else:
        said = "Everything is in order. A node can run here."
    if not asked and not faults:
        said += " To check your way to a run as well, add --bootstrap ADDRESS."
    return f"{said} ({len(findings)} checks, {seconds:.0f} s)"


def facts(findings: Sequence[Finding], seconds: float) -> dict[str, object]:
    """Return the result for `--json`."""
    from p2ptrain.doctor.finding import exit_status

    return {
        "findings": [asdict(each) for each in findings],
        "status": exit_status(findings),
        "seconds": round(seconds, 1),
    }

"""The input of a measure: how thorough to be, earlier results, and a way to run commands.

A measure is a function that takes a setting and yields lines. It does not raise an exception if a
requirement is not met: it yields a line with `ok` set to false.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Line = dict[str, object]
"""An object with `measure`, `value`, `required`, `ok`, and optional details."""

ROOT = Path(__file__).parents[3]
TAIL_CHARACTERS = 2000
"""Maximum number of characters of a failed command's output in a line."""

COMMAND_S = 4 * 3600.0
"""Timeout of a command. The slowest command is a campaign of 10,000 seeds on one slow core."""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended, with its output."""

    code: int
    text: str
    seconds: float

    @property
    def tail(self) -> str:
        return self.text[-TAIL_CHARACTERS:]


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of `scripts/accept`. `folder` is for logs. `given` maps names to files with
    earlier results, which are used instead of measuring again.
    """

    folder: Path
    quick: bool = False
    seeds: int = 10_000
    processes: int = 1
    given: Mapping[str, Path] = field(default_factory=dict)

    def run(self, name: str, *words: str, deadline_s: float = COMMAND_S) -> Done:
        """Run a command in the root of the repository. Keep its output as `folder/name.log`."""
        began_s = time.monotonic()
        path = self.folder / f"{name}.log"
        with path.open("wb") as log:
            try:
                code = subprocess.run(
                    words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, timeout=deadline_s
                ).returncode
            except (OSError, subprocess.TimeoutExpired) as exc:
                log.write(f"\n{exc}\n".encode())
                code = -1
        text = path.read_text(encoding="utf-8", errors="replace")
        return Done(code, text, round(time.monotonic() - began_s, 1))

    def python(self, name: str, *words: str) -> Done:
        return self.run(name, sys.executable, *words)

    def earlier(self, name: str) -> str | None:
        """Return the text of an earlier result with this name, or None if none was given."""
        path = self.given.get(name)
        return None if path is None else path.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class Measure:
    """`takes` and `takes_quick` say about how long it takes, on two quiet cores."""

    name: str
    take: Callable[[Setting], Iterable[Line]]
    takes: str = ""
    takes_quick: str = ""


def line(name: str, value: object, required: str, ok: bool, **detail: object) -> Line:
    return {"measure": name, "value": value, "required": required, "ok": ok, **detail}


def objects_in(text: str) -> list[dict[str, object]]:
    """Return the JSON objects in `text`; each must be on a line of its own."""
    found = []
    for each in text.splitlines():
        if each.startswith("{"):
            try:
                value = json.loads(each)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
    return found


def select(measures: Sequence[Measure], words: Sequence[str]) -> list[Measure]:
    """Return the measures whose name contains one of the words, or all if there are no words."""
    return [each for each in measures if not words or any(word in each.name for word in words)]

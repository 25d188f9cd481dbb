"""Start the attackers' processes, limit their CPU, let them begin, and read their counts.

The processes are `tests.siege.strangers` (all strangers) and `tests.siege.liar` (the lying member).
Each prints "ready" after its imports and begins when it reads "go". It repeatedly writes its counts
to a file, so that they are not lost when the process is killed.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import IO

from tests.siege.harness.field import ROOT, Field
from tests.siege.harness.measures import Attacks
from tests.siege.harness.quota import Quota

READY_S = 120.0
"""Start-up timeout in seconds. Importing libp2p takes a second of CPU, and the machine may be busy.
"""

PROGRAMS = ("tests.siege.strangers", "tests.siege.liar")

IDLE_LOOP = "import sys; print('ready', flush=True); sys.stdin.readline()\nwhile True: pass"


class NotReady(Exception):
    """An attacker's process did not start."""


class Crew:
    """Processes that print "ready" and then wait for "go"."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._processes: list[subprocess.Popen[str]] = []

    def _start(self, words: list[str], output: IO[bytes] | int) -> None:
        self._processes.append(
            subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=ROOT,
                env=os.environ | {"NO_COLOR": "1"},
                start_new_session=True,
            )
        )

    def ready(self) -> None:
        """Wait until all processes have started, and put them under the quota.

        Raises NotReady.
        """
        for process in self._processes:
            _await_word(process, time.monotonic() + READY_S)
            self._quota.add(process.pid)

    def begin(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


class Idler(Crew):
    """A process with a busy loop, which uses as much CPU in the quiet run as the attackers do in a
    siege.
    """

    attacks: Attacks | None = None

    def __init__(self, quota: Quota) -> None:
        super().__init__(quota)
        self._start([sys.executable, "-c", IDLE_LOOP], subprocess.DEVNULL)


class Crowd(Crew):
    """All attackers. If `only` is given, they run only these attacks."""

    def __init__(self, field: Field, quota: Quota, *, only: list[str] | None) -> None:
        super().__init__(quota)
        ground = field.folder / "ground.json"
        field.tell_attackers(ground)
        self._counts = [field.folder / f"{program}.json" for program in PROGRAMS]
        for program, counts in zip(PROGRAMS, self._counts, strict=True):
            words = [sys.executable, "-m", program, str(ground), str(counts), *(only or ())]
            with (field.folder / f"{program}.txt").open("wb") as output:
                self._start(words, output)

    @property
    def attacks(self) -> Attacks:
        counts: Counter[str] = Counter()
        expected: set[str] = set()
        for path in self._counts:
            told = _told(path)
            counts.update(told.get("counts", {}))
            expected.update(told.get("expected", ()))
        return Attacks(counts, frozenset(expected))


def _told(path: Path) -> dict[str, dict[str, int]]:
    """Return the counts that an attacker's process has written, or an empty dict if there are
    none.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _await_word(process: subprocess.Popen[str], ends_s: float) -> None:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < ends_s:
            if selector.select(1.0):
                if process.stdout.readline().strip() == "ready":
                    return
                break
    raise NotReady(f"{process.args!r} did not print 'ready' in time")

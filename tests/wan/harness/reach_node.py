"""A real node on the emulated network, and how fast its verdict about its reach becomes right."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.peers.reach_verdict import Reach
from p2ptrain.testing.node_process import DemoNode
from tests.wan.harness import emulator

INNER_STEP_S = 1.0

STAY_S = 3.0
"""Seconds for which a verdict must remain."""

STOP_S = 20.0
LOOK_S = 0.1


class ReachNode(DemoNode):
    """A real node on the emulated network. `launched_s` is when its process was started."""

    def __init__(self, name: str, home: Path, number: int) -> None:
        super().__init__(name, home)
        self.number = number
        self.launched_s = 0.0

    def launch(self, host: str, *words: str) -> None:
        program = [sys.executable, "-m", "tests.wan.harness.voter", "--home", str(self.home)]
        program += ["--host", host, "--inner-step", str(INNER_STEP_S), *words]
        self.launched_s = time.monotonic()
        with (self.home / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                emulator.inside(self.number, program),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The locks of ports are files, and the nodes have the same ports.
                env=os.environ | {"NO_COLOR": "1", "XDG_RUNTIME_DIR": str(self.home)},
                start_new_session=True,
            )

    def wait_for(self, found: Callable[[], bool], deadline_s: float) -> bool:
        """Read the journal until `found()`. Return whether that was so within `deadline_s`."""
        ends_s = time.monotonic() + deadline_s
        while True:
            for _ in self.new_events():
                pass
            if found():
                return True
            if time.monotonic() > ends_s or not self.running:
                return False
            time.sleep(LOOK_S)

    def verdicts(self, since_s: float) -> list[tuple[float, str, str]]:
        """Return the verdicts in the journal since then: the seconds after `since_s`, the verdict
        and its sentence. A node that does not know yet says nothing about itself."""
        return [
            (each["monotonic_s"] - since_s, each["verdict"], each["what"])
            for each in self.events
            if each["event"] == "reach"
            and each["monotonic_s"] >= since_s
            and each["verdict"] != Reach.UNKNOWN
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One try, or one change. `said` are the verdicts that followed, the oldest first; `right_s` is
    the time of the right one, None if it did not come or did not stay."""

    right_s: float | None
    said: tuple[str, ...]


def judged(node: ReachNode, since_s: float, right: Reach, words: str) -> Outcome:
    said = node.verdicts(since_s)
    told = tuple(f"{at_s:.1f} s {reach}: {what}" for at_s, reach, what in said)
    if not said or said[-1][1] != right or words not in said[-1][2]:
        return Outcome(None, told)
    return Outcome(round(said[-1][0], 1), told)


def watched(node: ReachNode, since_s: float, right: Reach, words: str, limit_s: float) -> Outcome:
    """Wait until the node's verdict is `right`, and a little longer, to see whether it stays."""
    node.wait_for(
        lambda: judged(node, since_s, right, words).right_s is not None,
        limit_s - (time.monotonic() - since_s),
    )
    node.wait_for(lambda: False, STAY_S)
    return judged(node, since_s, right, words)


def end(node: ReachNode) -> None:
    """Let the node leave in an orderly way, and wait."""
    node.finish(STOP_S)

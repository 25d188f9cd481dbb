"""How much a joiner slows the members: their inner-step rate while it fetches ÷ before.

    python -m p2ptrain.testing.demo.join_rate [--joins 8]

The joiner takes CPU of its own (it starts Python, libp2p and torch), which on one small machine
would hide what is asked here. So the members and the seed are pinned to one core, and the joiners
to another: what is left is what serving a snapshot costs. Needs two idle cores and Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from p2ptrain.testing.demo.show import Show
from p2ptrain.testing.demo.story import Story

BEFORE_S = 8.0
"""Before each join anew, so that a machine that grows busier does not look like a joiner."""

OUTER_STEPS = 400
"""More than there is time for: the run must not end while it is measured."""

MEMBERS = ("ann", "ben")


class JoinStory(Story):
    """Two members on the first core; joiners come one after another on the second.

    All upload slowly, so that a fetch lasts for several inner steps.
    """

    uplink = seed_uplink = "2Mbit"

    def measure(self, joins: int) -> tuple[list[float], list[float]]:
        """Seconds of the members' inner steps: (before each joiner, while it fetched)."""
        members_core, joiners_core = sorted(os.sched_getaffinity(0))[:2]
        joiners = {f"joiner-{number}": self._cast(f"joiner-{number}") for number in range(joins)}
        self.cast |= joiners
        os.sched_setaffinity(0, {members_core})
        address = self.publish((*MEMBERS, *joiners))
        for name in MEMBERS:
            self._start(self.cast[name], "--bootstrap", address)
        self.wait_for("two outer steps", lambda: self._committed_by("ann", 1), deadline_s=120)
        os.sched_setaffinity(0, {joiners_core})
        before: list[float] = []
        while_joining: list[float] = []
        for joiner in joiners.values():
            before += self._steps_within(*self._let_pass(BEFORE_S))
            self._start(joiner, "--bootstrap", address)
            found = partial(joiner.find, "snapshot-fetched")
            end = self.wait_for("the joiner's snapshot", found, deadline_s=90)
            while_joining += self._steps_within(end["time"] - end["seconds"], end["time"])
            joiner.kill()
        return before, while_joining

    def _let_pass(self, seconds: float) -> tuple[float, float]:
        """Watch the members for so long; the times between which that was."""
        events = self.cast["ann"].events
        start = events[-1]["time"]
        self.wait_for(
            "time to pass", lambda: events[-1]["time"] > start + seconds, deadline_s=4 * seconds
        )
        return start, start + seconds

    def _steps_within(self, start: float, end: float) -> list[float]:
        """Inner steps begun and ended between these times, exchanges left out."""
        return [
            event["seconds"]
            for name in MEMBERS
            for event in self.cast[name].events
            if event["event"] == "inner-step"
            and start <= event["time"] - event["seconds"]
            and event["time"] <= end
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how much joiners slow the members.")
    parser.add_argument("--joins", type=int, default=8)
    parser.add_argument("--config", type=Path, default=Path("configs/demo.toml"))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="p2ptrain-join-"))
    config = folder / "run.toml"
    text = given.config.read_text()
    config.write_text(re.sub(r"(?m)^(\[outer\].*\nsteps = )\d+", rf"\g<1>{OUTER_STEPS}", text))
    story = JoinStory(folder, config, Show())
    try:
        before, during = story.measure(given.joins)
    finally:
        for node in story.cast.values():
            node.kill()
        shutil.rmtree(folder)
    result = {
        "measure": "members' inner-step rate while a joiner fetches, on a core of their own",
        "value": round(statistics.mean(before) / statistics.mean(during), 3),
        "unit": "ratio",
        "against": f"before each joiner ({len(before)} and {len(during)} inner steps)",
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

"""How much a joiner slows the members: their inner-step rate while it fetches ÷ before.

Real nodes and trainers, each in a network namespace behind a cable of a given rate. The joiner
takes CPU of its own (it starts Python, libp2p and torch), which on one small machine would hide
what is asked here. So the members and the seed are pinned to one core, and the joiners to another:
what is left is what serving a snapshot costs. Needs root, two idle cores and Linux.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rich.console import Console

from p2ptrain.errors import MachineUnfit
from p2ptrain.testing.bench.lines import Line
from p2ptrain.testing.demo.process import DemoNode
from p2ptrain.testing.demo.show import Show
from p2ptrain.testing.demo.story import Story
from p2ptrain.testing.place import Place, opened

BEFORE_S = 8.0
"""Before each join anew, so that a machine that grows busier does not look like a joiner."""

OUTER_STEPS = 4000
"""More than there is time for: the run must not end while it is measured."""

MEMBERS = ("ann", "ben")


class JoinStory(Story):
    """Two members on the first core; joiners come one after another on the second."""

    uplink = seed_uplink = "1000Mbit"
    """The cable is slower: it is the network that limits."""

    def __init__(self, folder: Path, config: Path, place: Place, joins: int) -> None:
        super().__init__(folder, config, Show(Console(stderr=True, highlight=False)))
        self._joiners = {
            f"joiner-{number}": self._cast(f"joiner-{number}") for number in range(joins)
        }
        self.cast = {name: self.cast[name] for name in ("seed", *MEMBERS)} | self._joiners
        self._place = place
        self._numbers = {name: min(number, 3) for number, name in enumerate(self.cast)}
        for name, node in self.cast.items():
            node.wrapped = partial(place.inside, self._numbers[name])

    def _where(self, node: DemoNode) -> tuple[str, ...]:
        host, control, data = self._place.address(self._numbers[node.name])
        return "--listen", f"/ip4/{host}/tcp/{control}", "--data-listen", f"{host}:{data}"

    def measure(self) -> tuple[list[float], list[float]]:
        """Seconds of the members' inner steps: (before each joiner, while it fetched)."""
        members_core, joiners_core = sorted(os.sched_getaffinity(0))[:2]
        os.sched_setaffinity(0, {members_core})
        address = self.publish(tuple(self.cast)[1:])
        for name in MEMBERS:
            self._start(self.cast[name], "--bootstrap", address)
        self.wait_for("two outer steps", lambda: self._committed_by("ann", 1), deadline_s=120)
        os.sched_setaffinity(0, {joiners_core})
        before: list[float] = []
        while_joining: list[float] = []
        for joiner in self._joiners.values():
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


def measure(joins: int, up_mbit_per_s: float, config: str) -> Iterator[Line]:
    """The run of this TOML, with more outer steps; every node may send at `up_mbit_per_s`.

    Raises:
        MachineUnfit: it may not make network namespaces, or has but one core.
    """
    affinity = os.sched_getaffinity(0)
    folder = Path(tempfile.mkdtemp(prefix="p2ptrain-join-"))
    given = folder / "run.toml"
    given.write_text(re.sub(r"(?m)^(\[outer\].*\nsteps = )\d+", rf"\g<1>{OUTER_STEPS}", config))
    with opened(4) as place:
        if not place.can_limit or len(affinity) < 2:
            raise MachineUnfit(
                "members and joiners need a core and a network each",
                evidence=[f"network  {place.name}", f"cores    {len(affinity)}"],
                do="run it as root, on a machine with two cores",
            )
        for number in range(4):
            place.limit(number, up_mbit_per_s)
        story = JoinStory(folder, given, place, joins)
        try:
            before, during = story.measure()
        finally:
            for node in story.cast.values():
                node.kill()
            os.sched_setaffinity(0, affinity)
            shutil.rmtree(folder)
    setting = f"while a joiner fetches at up to {3 * up_mbit_per_s:g} Mbit/s"
    yield Line(
        f"members' inner-step rate {setting}",
        statistics.mean(before) / statistics.mean(during),
        "ratio",
        f"before each joiner ({len(before)} and {len(during)} inner steps)",
    )

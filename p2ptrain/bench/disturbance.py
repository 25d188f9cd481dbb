"""How much a joiner slows a member: its inner-step rate while the joiner comes ÷ before.

Real nodes and trainers, each in a network namespace behind a cable of a given rate. On its own
machine a member shares its processors with nobody; so here one member, node and trainer, has a core
to itself, and the other member, the seed and the joiners, who start Python, libp2p and torch, have
the other. What is left is what a joiner costs a member: letting it in, talking to it, and serving
its part of the snapshot. That is also measured by itself, in processor time of the member's node
above what it takes anyway. Needs root, two idle cores and Linux.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console

from p2ptrain.bench.lines import Line
from p2ptrain.demo.show import Show
from p2ptrain.demo.story import Story
from p2ptrain.errors import MachineUnfit
from p2ptrain.testing.network_namespaces import Place, opened
from p2ptrain.testing.node_process import DemoNode

BEFORE_S = 8.0
"""Before each join anew, so that a machine that grows busier does not look like a joiner."""

OUTER_STEPS = 4000
"""More than there is time for: the run must not end while it is measured."""

INNER_STEPS_MIN = 40
"""More than the demo has, so that a member trains for most of the time."""

JOIN_S_MAX = 180.0

MEASURED, OTHER = "ann", "ben"


@dataclass(slots=True)
class Seen:
    """Of the measured member, over all joiners: seconds of its inner steps, and of its node's
    processor time.
    """

    steps_before: list[float] = field(default_factory=list)
    steps_coming: list[float] = field(default_factory=list)
    """From the joiner's start until it has the snapshot."""
    steps_fetching: list[float] = field(default_factory=list)
    """While the snapshot is fetched, which is the end of that."""
    node_s_before: list[float] = field(default_factory=list)
    """Per second."""
    node_s_extra: list[float] = field(default_factory=list)
    """For each joiner, beyond what it would have been by the rate before."""
    fetch_s: list[float] = field(default_factory=list)


class JoinStory(Story):
    """One member on the first core, all others on the second; joiners come one after another."""

    uplink = seed_uplink = "1000Mbit"
    """The cable is slower: it is the network that limits."""

    def __init__(self, folder: Path, config: Path, place: Place, joins: int) -> None:
        super().__init__(folder, config, Show(Console(stderr=True, highlight=False)))
        self._joiners = {
            f"joiner-{number}": self._cast(f"joiner-{number}") for number in range(joins)
        }
        self.cast = {name: self.cast[name] for name in ("seed", MEASURED, OTHER)} | self._joiners
        self._place = place
        self._numbers = {name: min(number, 3) for number, name in enumerate(self.cast)}
        for name, node in self.cast.items():
            node.wrapped = partial(place.inside, self._numbers[name])

    def _where(self, node: DemoNode) -> tuple[str, ...]:
        host, control, data = self._place.address(self._numbers[node.name])
        return "--listen", f"/ip4/{host}/tcp/{control}", "--data-listen", f"{host}:{data}"

    def measure(self) -> Seen:
        own_core, core_of_the_others = sorted(os.sched_getaffinity(0))[:2]
        os.sched_setaffinity(0, {core_of_the_others})
        address = self.publish(tuple(self.cast)[1:])
        self._start(self.cast[OTHER], "--bootstrap", address)
        os.sched_setaffinity(0, {own_core})
        self._start(self.cast[MEASURED], "--bootstrap", address)
        os.sched_setaffinity(0, {core_of_the_others})
        self.wait_for("two outer steps", lambda: self._committed_by(MEASURED, 1), deadline_s=180)
        seen = Seen()
        for joiner in self._joiners.values():
            self._measure_one(joiner, address, seen)
        return seen

    def _measure_one(self, joiner: DemoNode, address: str, seen: Seen) -> None:
        node_s, (start, end) = self._node_s(), self._let_pass(BEFORE_S)
        before_s = self._node_s() - node_s
        seen.node_s_before.append(before_s / (end - start))
        seen.steps_before += self._steps_within(start, end)
        node_s, come_at = self._node_s(), self._now()
        self._start(joiner, "--bootstrap", address)
        found = partial(joiner.find, "snapshot-fetched")
        fetched = self.wait_for("the joiner's snapshot", found, deadline_s=JOIN_S_MAX)
        took_s = fetched["time"] - come_at
        seen.node_s_extra.append(self._node_s() - node_s - took_s * seen.node_s_before[-1])
        seen.steps_coming += self._steps_within(come_at, fetched["time"])
        seen.steps_fetching += self._steps_within(
            fetched["time"] - fetched["seconds"], fetched["time"]
        )
        seen.fetch_s.append(fetched["seconds"])
        joiner.kill()

    def _node_s(self) -> float:
        """Processor time of the measured member's node, without its trainers."""
        process = self.cast[MEASURED].process
        assert process is not None
        times = psutil.Process(process.pid).cpu_times()
        return float(times.user + times.system)

    def _now(self) -> float:
        """By the journal of the measured member."""
        return float(self.cast[MEASURED].events[-1]["time"])

    def _let_pass(self, seconds: float) -> tuple[float, float]:
        """Watch the members for so long; the times between which that was."""
        start = self._now()
        self.wait_for("time to pass", lambda: self._now() > start + seconds, deadline_s=4 * seconds)
        return start, self._now()

    def _steps_within(self, start: float, end: float) -> list[float]:
        """Inner steps begun and ended between these times, exchanges left out."""
        return [
            event["seconds"]
            for event in self.cast[MEASURED].events
            if event["event"] == "inner-step"
            and start <= event["time"] - event["seconds"]
            and event["time"] <= end
        ]


def measure(joins: int, up_mbit_per_s: float, config: str) -> Iterator[Line]:
    """The run of this TOML, with more steps; every node may send at `up_mbit_per_s`.

    A joiner costs some processor time whatever it fetches, so the smaller the model is, and the
    faster its fetch, the more it shows.

    Raises:
        MachineUnfit: it may not make network namespaces, or has but one core.
    """
    affinity = os.sched_getaffinity(0)
    folder = Path(tempfile.mkdtemp(prefix="p2ptrain-join-"))
    given = folder / "run.toml"
    given.write_text(_lengthened(config))
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
            seen = story.measure()
        finally:
            for node in story.cast.values():
                node.kill()
            os.sched_setaffinity(0, affinity)
            shutil.rmtree(folder)
    yield from lines(seen, 3 * up_mbit_per_s)


def _lengthened(config: str) -> str:
    def longer(found: re.Match[str]) -> str:
        return found[1] + str(max(int(found[2]), INNER_STEPS_MIN))

    config = re.sub(r"(?m)^(\[inner\].*\nsteps = )(\d+)", longer, config)
    return re.sub(r"(?m)^(\[outer\].*\nsteps = )\d+", rf"\g<1>{OUTER_STEPS}", config)


def lines(seen: Seen, mbit_per_s: float) -> Iterator[Line]:
    """What was seen, as figures."""
    before = statistics.mean(seen.steps_before)
    for steps, doing in (
        (seen.steps_fetching, f"while a joiner fetches at up to {mbit_per_s:g} Mbit/s"),
        (seen.steps_coming, "from a joiner's start until it has the snapshot"),
    ):
        yield Line(
            f"a member's inner-step rate {doing}",
            before / statistics.mean(steps),
            "ratio",
            f"before each joiner ({len(seen.steps_before)} and {len(steps)} inner steps)",
        )
    yield Line("a member's node, for each joiner", statistics.mean(seen.node_s_extra), "CPU s more")
    yield Line("a member's node, before", statistics.mean(seen.node_s_before), "CPU s per s")
    yield Line("a joiner's fetch", statistics.mean(seen.fetch_s), "s")

"""Measure how much a joiner slows a member: the ratio of the member's inner-step rates during and
before the join.

The nodes and trainers are real, each in a network namespace behind a cable of a given rate. In a
real run, peers do not share processors. So here one member (node and trainer) has a core to itself.
The other core runs the other member, the seed, and the joiners, which start Python, libp2p and
torch. The remaining effect is what a joiner costs a member: admission, messages, and serving part
of the snapshot. This cost is also measured as the additional processor time of the member's node.
The benchmark needs root, two idle cores and Linux.
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

from p2ptrain.bench.lines import FigureLine
from p2ptrain.demo.show import Show
from p2ptrain.demo.story import Story
from p2ptrain.errors import MachineUnfit
from p2ptrain.testing.network_namespaces import NodeNetwork, opened
from p2ptrain.testing.node_process import DemoNode

BEFORE_S = 8.0
"""Seconds of the baseline before each join. The baseline is measured again for every join, so that
a machine that gradually becomes busier does not distort the result."""

OUTER_STEPS = 4000
"""Outer steps of the run: enough that it does not end during the measurement."""

INNER_STEPS_MIN = 40
"""Minimum number of inner steps: more than in the demo, so that a member mostly trains."""

JOIN_S_MAX = 180.0

MEASURED, OTHER = "ann", "ben"


@dataclass(slots=True)
class MemberTimes:
    """Measurements of one member over all joiners: seconds of its inner steps, and processor
    seconds of its node."""

    steps_before: list[float] = field(default_factory=list)
    steps_coming: list[float] = field(default_factory=list)
    """Inner steps from the joiner's start until it has the snapshot."""
    steps_fetching: list[float] = field(default_factory=list)
    """Inner steps while the joiner fetches the snapshot: the last part of `steps_coming`."""
    node_s_before: list[float] = field(default_factory=list)
    """Processor seconds per second before each join."""
    node_s_extra: list[float] = field(default_factory=list)
    """Additional processor seconds per joiner, above the rate before the join."""
    fetch_s: list[float] = field(default_factory=list)


class JoinStory(Story):
    """Runs the measured member on the first core and all other nodes on the second. The joiners
    join one after another."""

    uplink = seed_uplink = "1000Mbit"
    """Upload limit of the nodes. It is above the cable's rate, so only the cable limits them."""

    def __init__(self, folder: Path, config: Path, place: NodeNetwork, joins: int) -> None:
        super().__init__(folder, config, Show(Console(stderr=True, highlight=False)))
        names = [f"joiner-{number}" for number in range(joins)]
        self._joiners = {name: self._cast(name) for name in names}
        self.cast = {name: self.cast[name] for name in ("seed", MEASURED, OTHER)} | self._joiners
        self._place = place
        self._numbers = {name: min(number, 3) for number, name in enumerate(self.cast)}
        for name, node in self.cast.items():
            node.wrapped = partial(place.inside, self._numbers[name])

    def _where(self, node: DemoNode) -> tuple[str, ...]:
        host, control, data = self._place.address(self._numbers[node.name])
        return "--listen", f"/ip4/{host}/tcp/{control}", "--data-listen", f"{host}:{data}"

    def measure(self) -> MemberTimes:
        own_core, core_of_the_others = sorted(os.sched_getaffinity(0))[:2]
        os.sched_setaffinity(0, {core_of_the_others})
        address = self.publish(tuple(self.cast)[1:])
        self._start(self.cast[OTHER], "--bootstrap", address)
        os.sched_setaffinity(0, {own_core})
        self._start(self.cast[MEASURED], "--bootstrap", address)
        os.sched_setaffinity(0, {core_of_the_others})
        self.wait_for("two outer steps", lambda: self._committed_by(MEASURED, 1), deadline_s=180)
        seen = MemberTimes()
        for joiner in self._joiners.values():
            self._measure_one(joiner, address, seen)
        return seen

    def _measure_one(self, joiner: DemoNode, address: str, seen: MemberTimes) -> None:
        node_s, (start, end) = self._node_s(), self._let_pass(BEFORE_S)
        before_s = self._node_s() - node_s
        seen.node_s_before.append(before_s / (end - start))
        seen.steps_before += self._steps_within(start, end)
        node_s, come_at = self._node_s(), self._now()
        self._start(joiner, "--bootstrap", address)
        found = partial(joiner.find, "snapshot-fetched")
        fetched = self.wait_for("the joiner's snapshot", found, deadline_s=JOIN_S_MAX)
        end, fetch_s = fetched["time"], fetched["seconds"]
        usual_s = (end - come_at) * seen.node_s_before[-1]
        seen.node_s_extra.append(self._node_s() - node_s - usual_s)
        seen.steps_coming += self._steps_within(come_at, end)
        seen.steps_fetching += self._steps_within(end - fetch_s, end)
        seen.fetch_s.append(fetch_s)
        joiner.kill()

    def _node_s(self) -> float:
        """Return the processor time of the measured member's node, without its trainers."""
        process = self.cast[MEASURED].process
        assert process is not None
        times = psutil.Process(process.pid).cpu_times()
        return float(times.user + times.system)

    def _now(self) -> float:
        """Return the time of the last record in the measured member's journal."""
        return float(self.cast[MEASURED].events[-1]["time"])

    def _let_pass(self, seconds: float) -> tuple[float, float]:
        """Watch the members for `seconds`. Return the start and the end of that time."""
        start = self._now()
        self.wait_for("time to pass", lambda: self._now() > start + seconds, deadline_s=4 * seconds)
        return start, self._now()

    def _steps_within(self, start: float, end: float) -> list[float]:
        """Return the seconds of each inner step that began and ended between these times."""
        return [
            event["seconds"]
            for event in self.cast[MEASURED].events
            if event["event"] == "inner-step"
            and start <= event["time"] - event["seconds"]
            and event["time"] <= end
        ]


def measure(joins: int, up_mbit_per_s: float, config: str) -> Iterator[FigureLine]:
    """Measure in a run with the settings of this TOML text, but with more steps. Every node can
    send at `up_mbit_per_s`.

    A join has a fixed cost in processor time, so its effect is more visible with a small model and
    a fast network.

    Raises:
        MachineUnfit: network namespaces are not permitted, or there is only one core.
    """
    affinity = os.sched_getaffinity(0)
    folder = Path(tempfile.mkdtemp(prefix="p2ptrain-join-"))
    given = folder / "run.toml"
    given.write_text(_lengthened(config))
    with opened(4) as place:
        if not place.can_limit or len(affinity) < 2:
            raise MachineUnfit(
                "the measured member needs a core of its own, and nodes need network namespaces",
                evidence=[f"network  {place.name}", f"cores    {len(affinity)}"],
                do="run the benchmark as root, on a machine with two or more cores",
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


def lines(seen: MemberTimes, mbit_per_s: float) -> Iterator[FigureLine]:
    before = statistics.mean(seen.steps_before)
    for steps, doing in (
        (seen.steps_fetching, f"while a joiner fetches at up to {mbit_per_s:g} Mbit/s"),
        (seen.steps_coming, "from a joiner's start until it has the snapshot"),
    ):
        ratio = before / statistics.mean(steps)
        against = f"before each joiner ({len(seen.steps_before)} and {len(steps)} inner steps)"
        yield FigureLine(f"a member's inner-step rate {doing}", ratio, "ratio", against)
    extra_s = statistics.mean(seen.node_s_extra)
    yield FigureLine("processor time of a member's node per joiner", extra_s, "extra CPU s")
    name = "processor time of a member's node before a join"
    yield FigureLine(name, statistics.mean(seen.node_s_before), "CPU s per s")
    yield FigureLine("a joiner's fetch", statistics.mean(seen.fetch_s), "s")

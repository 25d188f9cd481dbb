"""Observe the honest nodes from outside during a phase: journals, memory, and sizes of logs.

All times are from the monotonic clock of this machine, which the journals use too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from p2ptrain.testing.node_process import Event
from tests.siege.harness.field import Field, SiegeNode
from tests.siege.harness.quota import rss_bytes

LOOK_EVERY_S = 0.25

TROUBLES = ("bad-update", "trainer-ended")
"""Events that do not happen in a run without attackers."""


Deed = tuple[float, Callable[[], bool]]
"""A pair (start time, action). The action is called repeatedly until it returns True."""


@dataclass(slots=True)
class Sight:
    """The observations of one node during one phase."""

    name: str
    commits: list[tuple[float, int]] = field(default_factory=list)
    """(time, outer step) of each outer step that the node has committed."""
    lives: list[list[int]] = field(default_factory=list)
    """Samples of resident memory in bytes, in one list for each process."""
    log_bytes: int = 0
    """Growth of the node's logs in bytes since the phase began."""
    namesakes: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Exit status and output, if the node ended by itself."""
    down: list[tuple[float, float]] = field(default_factory=list)
    """(stop, restart) times of each restart by the harness."""

    def take(self, event: Event) -> None:
        at_s = float(event["monotonic_s"])
        match event:
            case {"event": "committed"}:
                self.commits.append((at_s, int(event["step"])))
            case {"event": "duplicate" | "identity-in-use"}:
                self.namesakes.append(str(event))
            case {"event": "stopped", "code": "ID-IN-USE"}:
                self.namesakes.append(str(event))
            case {"event": name} if name in TROUBLES:
                self.troubles.append(str(event))
            case {"event": "stopped"} if event["code"]:
                self.troubles.append(str(event))

    @property
    def growth_bytes(self) -> int:
        """The largest memory growth of a process, from its first sample to its maximum."""
        return max((max(life) - life[0] for life in self.lives if life), default=0)


@dataclass(slots=True)
class Phase:
    """A period in which all nodes are observed."""

    on: Field
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    sights: dict[str, Sight] = field(default_factory=dict)
    _sizes: dict[Path, int] = field(default_factory=dict)
    _pids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.on.nodes:
            for _ in node.new_events():
                pass
            node.events.clear()
            self.sights[node.name] = Sight(node.name)
            for path in _logs(node):
                self._sizes[path] = path.stat().st_size

    def look(self) -> None:
        for node in self.on.nodes:
            self._look_at(node)

    def _look_at(self, node: SiegeNode) -> None:
        sight = self.sights[node.name]
        for event in node.new_events():
            sight.take(event)
        node.events.clear()
        for path in _logs(node):
            size = path.stat().st_size
            sight.log_bytes += max(0, size - self._sizes.get(path, 0))
            self._sizes[path] = size
        if node.ended and not sight.ended:
            sight.ended.append(f"status {node.returncode}: {node.output()[-800:]}")
        self._weigh(node, sight)

    def _weigh(self, node: SiegeNode, sight: Sight) -> None:
        """Record the memory of the node's process.

        A restarted process is measured only from its first commit on, since memory that it needs to
        start is not growth.
        """
        if node.process is None or not node.running:
            return
        pid = node.process.pid
        if self._pids.get(node.name) != pid:
            since = sight.down[-1][1] if sight.down else 0.0
            if sight.lives and not any(at_s > since for at_s, _ in sight.commits):
                return
            self._pids[node.name] = pid
            sight.lives.append([])
        if (held := rss_bytes(pid)) is not None:
            sight.lives[-1].append(held)

    def watch(self, until_s: float, deeds: Sequence[Deed] = ()) -> None:
        """Observe until `until_s`. Call each action again and again from its start time on, until
        it returns True.
        """
        due = list(deeds)
        while (now_s := time.monotonic()) < until_s:
            due = [deed for deed in due if now_s < deed[0] or not deed[1]()]
            self.look()
            time.sleep(LOOK_EVERY_S)
        self.look()
        self.ended_s = time.monotonic()

    def note_down(self, node: SiegeNode, began_s: float) -> None:
        """Record that the harness stopped this node at `began_s` and has just restarted it."""
        self.sights[node.name].down.append((began_s, time.monotonic()))

    @property
    def steps(self) -> int:
        """The number of outer steps that any node committed during the phase."""
        seen = {step for sight in self.sights.values() for _, step in sight.commits}
        return len(seen)

    @property
    def stall_s(self) -> float:
        """The longest time in which no node committed a new outer step."""
        first: dict[int, float] = {}
        for sight in self.sights.values():
            for at_s, step in sight.commits:
                first[step] = min(at_s, first.get(step, at_s))
        return longest_gap([*first.values()], self.began_s, self.ended_s)

    def stall_of_s(self, sight: Sight) -> float:
        """Return the longest time without a commit on one node.

        For a restarted node, consider only the time until it was stopped.
        """
        times = [at_s for at_s, _ in sight.commits]
        ends_s = min((down_s for down_s, _ in sight.down), default=self.ended_s)
        return longest_gap(times, self.began_s, ends_s)

    def back_after_s(self, sight: Sight) -> float | None:
        """Return the time from the last restart to the second commit after it.

        The node can have contributed to the second commit, but not to the first one. Return None if
        the node was not restarted or has not committed twice since.
        """
        up_s = max((up_s for _, up_s in sight.down), default=math.inf)
        later = sorted(at_s for at_s, _ in sight.commits if at_s > up_s)
        return later[1] - up_s if later[1:] else None


def longest_gap(times: list[float], begin_s: float, end_s: float) -> float:
    """Return the longest period between `begin_s` and `end_s` without any of `times`."""
    inside = sorted(at_s for at_s in times if begin_s < at_s < end_s)
    edges = [begin_s, *inside, end_s]
    return max(later - earlier for earlier, later in pairwise(edges))


def _logs(node: SiegeNode) -> list[Path]:
    return [
        path for path in (node.home / "journal.jsonl", node.home / "output.txt") if path.exists()
    ]

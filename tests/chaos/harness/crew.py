"""Up to five nodes, their journals, and the points at which they are stopped.

This module does not inject faults or check results. It observes nodes only from outside: through
their journals, their output, and the sockets of their gates. A gate stops a node at a chosen point
(see `gate`). All journals use the monotonic clock of this machine.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar

from p2ptrain.archive.home import Home
from p2ptrain.config.run_file import PolicySection
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.run import Run
from p2ptrain.run.manifest import Policy
from p2ptrain.testing.network_namespaces import NodeNetwork
from p2ptrain.testing.node_process import DemoNode, Event
from p2ptrain.testing.published import copy_run, publish
from tests.chaos.harness.modes import PLAIN, STAND_IN, Mode
from tests.chaos.harness.points import Point, Role

NAMES = ("ann", "ben", "cat", "dan", "eve")
OUTER_STEPS = 1_000_000
"""Outer steps of the run: more than any run of the harness can complete."""

SNAPSHOT_EVERY = 2
"""Outer steps between two snapshots. Equal digests in the journals show that θ and m are equal on
all nodes.
"""

LOOK_EVERY_S = 0.02

Seen = TypeVar("Seen")


class NotSeen(Exception):
    """An expected event did not happen in time. The message says what the nodes were doing."""


@dataclass(frozen=True, slots=True)
class Passed:
    point: Point
    role: Role


@dataclass(frozen=True, slots=True)
class Commit:
    """An outer step that a node has committed, according to its journal."""

    step: int
    head: str
    peers: int
    took_part: bool
    at_s: float


@dataclass
class Sighting:
    """The events in the journal of one node, including those before its restarts."""

    commits: dict[int, Commit] = field(default_factory=dict)
    snapshots: dict[int, str] = field(default_factory=dict)
    decided: list[tuple[float, int, str, str]] = field(default_factory=list)
    """A tuple (time, height, entry, kind) for each decided entry."""
    voters: int = 0
    """Number of voters in the latest roster."""
    reduces_s: list[float] = field(default_factory=list)
    reds: list[tuple[float, str]] = field(default_factory=list)
    """A pair (time, peer) for each peer that the node declared lost."""
    troubles: list[str] = field(default_factory=list)

    def take(self, event: Event) -> None:
        at_s = event["monotonic_s"]
        match event:
            case {"event": "committed"}:
                step = int(event["step"])
                self.commits[step] = Commit(
                    step, event["head"], event["peers"], event["took_part"], at_s
                )
            case {"event": "decided"}:
                self.decided.append((at_s, event["height"], event["entry"], event["kind"]))
                self.voters = len(event.get("voters", ())) or self.voters
            case {"event": "snapshot"}:
                self.snapshots[event["step"]] = event["digest"]
            case {"event": "exchange-done"}:
                self.reduces_s.append(event["seconds"])
            case {"event": "peer", "health": "red"}:
                self.reds.append((at_s, event["peer"]))
            case {"event": "evidence" | "duplicate" | "bad-update" | "recovered" | "trainer-ended"}:
                self.troubles.append(str(event))
            case {"event": "stopped"} if event["code"]:
                self.troubles.append(str(event))

    @property
    def step(self) -> int:
        """The number of outer steps that the node has committed."""
        return 1 + max(self.commits, default=-1)


class ChaosNode(DemoNode):
    """One node, across its restarts."""

    def __init__(
        self,
        name: str,
        number: int,
        home: Path,
        identity: Identity,
        inner_step_s: float,
        trainers: str,
    ) -> None:
        super().__init__(name, home)
        self._trainers = trainers
        self.number = number
        self.identity = identity
        self.seen = Sighting()
        self.passed: set[Passed] = set()
        self.at: Point | None = None
        self._inner_step_s = inner_step_s
        self._line: socket.socket | None = None
        self._half_line = b""

    @property
    def peer(self) -> PeerId:
        return self.identity.peer

    def launch(self, place: NodeNetwork) -> None:
        """Start the process, with a new connection to its gate."""
        self.hang_up()
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        self._half_line, self.at = b"", None
        host, port, data_port = place.address(self.number)
        words = [sys.executable, "-m", "tests.chaos.harness.node", "--home", str(self.home)]
        words += ["--line", str(theirs.fileno()), "--inner-step-s", str(self._inner_step_s)]
        words += ["--trainers", self._trainers]
        words += ["--listen", f"/ip4/{host}/tcp/{port}", "--data-listen", f"{host}:{data_port}"]
        with (self.home / "output.txt").open("ab") as output, theirs:
            self.process = subprocess.Popen(
                place.inside(self.number, words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"NO_COLOR": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def look(self) -> None:
        for event in self.new_events():
            self.seen.take(event)
        self.events.clear()
        for text in self._heard():
            match text.split():
                case ["passed", point, role]:
                    self.passed.add(Passed(Point.parse(point), Role(role)))
                case ["at", point]:
                    self.at = Point.parse(point)

    def _heard(self) -> list[str]:
        data = self._half_line
        try:
            while self._line is not None and (more := self._line.recv(1 << 16)):
                data += more
        except (BlockingIOError, ConnectionResetError):
            pass
        *lines, self._half_line = data.split(b"\n")
        return [line.decode() for line in lines]

    def arm(self, point: Point, role: Role) -> None:
        self._say(f"arm {point} {role}")

    def go(self) -> None:
        """Disarm the node's gate, and let the node continue if it is stopped there."""
        self.at = None
        self._say("go")

    def _say(self, text: str) -> None:
        if self._line is not None and self.running:
            self._line.sendall(text.encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, number)


class Crew:
    """All nodes. Each node has the run and the addresses of the other nodes on its own disk."""

    def __init__(
        self,
        folder: Path,
        place: NodeNetwork,
        *,
        inner_step_s: float = 0.2,
        mode: Mode = PLAIN,
        names: Sequence[str] = NAMES,
        trainers: str = STAND_IN,
    ) -> None:
        self.place = place
        self.trainers = trainers
        self.nodes: list[ChaosNode] = []
        for number, name in enumerate(names):
            home = Home(folder / name)
            identity = load_or_create(home.identity)
            self.nodes.append(ChaosNode(name, number, home.root, identity, inner_step_s, trainers))
        self.run = self._publish(mode)

    def _publish(self, mode: Mode) -> Run:
        peers = [node.peer for node in self.nodes]
        first = Home(self.nodes[0].home)
        rules = default_policy()
        run = publish(
            first,
            allowed=peers,
            founders=peers,
            steps=OUTER_STEPS,
            rules=rules,
            sync=mode.sync,
            inner_steps=mode.inner_steps,
        )
        copy_run(first, run, (Home(node.home) for node in self.nodes[1:]))
        for node in self.nodes:
            Home(node.home).peers.write_text(self._addresses(node))
        return run

    def _addresses(self, node: ChaosNode) -> str:
        """Return the contents of the address file of a node that knows all other nodes."""
        told = {}
        for other in self.nodes:
            if other is not node:
                host, port, _ = self.place.address(other.number)
                told[other.peer] = [f"/ip4/{host}/tcp/{port}/p2p/{other.peer}"]
        return json.dumps(told)

    def start(self, *nodes: ChaosNode) -> None:
        for node in nodes or self.nodes:
            node.launch(self.place)

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
            node.hang_up()

    # observing

    def look(self) -> None:
        for node in self.nodes:
            node.look()

    def wait_for(self, what: str, seen: Callable[[], Seen | None], *, deadline_s: float) -> Seen:
        """Call `seen` until it returns a true value, and return that value.

        Raises NotSeen if this does not happen before the deadline, or if a node ends by itself.
        """
        ends_s = time.monotonic() + deadline_s
        while True:
            self.look()
            if value := seen():
                return value
            for node in self.nodes:
                if node.returncode not in (None, -signal.SIGKILL):
                    raise NotSeen(f"{node.name} ended by itself:\n{node.output()[-3000:]}")
            if time.monotonic() > ends_s:
                account = self.account()
                raise NotSeen(f"not seen within {deadline_s:.0f} s: {what}\n{account}")
            time.sleep(LOOK_EVERY_S)

    def account(self) -> str:
        lines = []
        for node in self.nodes:
            status = node.status() if node.running else None
            said = (
                f"step {status['outer_step']} height {status['ledger_height']} "
                f"{status['state']}; {status['waits_for']}"
                if status
                else "does not answer"
            )
            lines.append(f"  {node.name} {'up' if node.running else node.returncode}: {said}")
        return "\n".join(lines)

    @property
    def step(self) -> int:
        return max(node.seen.step for node in self.nodes)

    def calm_since(self, step: int) -> bool:
        """Return whether all nodes have taken part in the same committed outer step, which is
        `step` or later, and no node is more than one outer step behind.
        """
        least = min(node.seen.step for node in self.nodes) - 1
        if least < step:
            return False
        last = [node.seen.commits.get(least) for node in self.nodes]
        whole = all(each is not None and each.took_part for each in last)
        return whole and self.step - 1 <= least + 1

    def same_state_since(self, step: int) -> int | None:
        """Return the first outer step, `step` or later, for which all nodes have written a
        snapshot.
        """
        shared = set.intersection(*(set(node.seen.snapshots) for node in self.nodes))
        later = [each for each in shared if each >= step]
        return min(later, default=None)

    def first_commit_after(self, at_s: float, among: Sequence[ChaosNode]) -> float | None:
        """Return the earliest time after `at_s` at which one of these nodes decided a commit."""
        times = [
            time_s
            for node in among
            for time_s, _, _, kind in node.seen.decided
            if kind == "commit" and time_s > at_s
        ]
        return min(times, default=None)

    def commit_times(self, since_s: float, among: Sequence[ChaosNode]) -> list[float]:
        """Return, for each commit after `since_s`, the time at which it first appeared in a ledger
        of these nodes.
        """
        first: dict[int, float] = {}
        for node in among:
            for time_s, height, _, kind in node.seen.decided:
                if kind == "commit" and time_s > since_s:
                    first[height] = min(time_s, first.get(height, time_s))
        return sorted(first.values())


def default_policy() -> Policy:
    """Return the default policy of a run file, with a different snapshot interval and chunk
    size.
    """
    usual = PolicySection(snapshot_every=SNAPSHOT_EVERY, chunk_bytes=4096)
    return Policy(**{each.name: getattr(usual, each.name) for each in fields(Policy)})


@contextmanager
def crew(
    folder: Path,
    place: NodeNetwork,
    *,
    inner_step_s: float = 0.2,
    mode: Mode = PLAIN,
    names: Sequence[str] = NAMES,
    trainers: str = STAND_IN,
) -> Iterator[Crew]:
    """Start the nodes, and wait until they have committed together.

    Real trainers get a longer deadline, since they load torch first.
    """
    made = Crew(folder, place, inner_step_s=inner_step_s, mode=mode, names=names, trainers=trainers)
    start_s = 120 if trainers == STAND_IN else 300
    try:
        made.start()
        made.wait_for("a first common outer step", lambda: made.calm_since(1), deadline_s=start_s)
        yield made
    finally:
        made.close()

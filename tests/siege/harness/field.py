"""The setting of a siege: the honest nodes, their run, and the information that attackers get.

Each node has its own address in 127.0.0.0/8, so that limits per address have an effect. Attackers
use different addresses in the same network. The lying member is a founder, so the honest nodes
count it as a voter from the first entry on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.archive.home import Home
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.run import Run
from p2ptrain.run.trust_rules import TrustRules
from p2ptrain.testing.node_process import DemoNode
from p2ptrain.testing.published import copy_run, publish
from tests.chaos.harness.crew import default_policy
from tests.chaos.harness.modes import STAND_IN

NAMES = ("ann", "ben", "cat", "dan", "eve")
LIAR = "liar"
OUTER_STEPS = 1_000_000
"""Outer steps of the run: more than a siege can complete."""

INNER_STEPS = 2
INNER_STEP_S = 0.5
"""Seconds per inner step. An outer step then takes slightly more than a second, and five nodes use
about half a core. This leaves enough CPU for the attackers on a machine with two cores.
"""

ROOT = Path(__file__).parents[3]
"""Working directory of the attackers, since the tests are not installed as a package."""

STRANGERS = 64


class SiegeNode(DemoNode):
    """One honest node, across its restarts. It listens at 127.0.0.(11 + number)."""

    def __init__(self, name: str, number: int, home: Path, identity: Identity) -> None:
        super().__init__(name, home)
        self.number = number
        self.identity = identity
        self.host = f"127.0.0.{11 + number}"
        self.port, self.data_port = _ports(number)
        self.stopped_by_us = False
        """Whether the harness has stopped the node and not yet started it again."""

    @property
    def peer(self) -> PeerId:
        return self.identity.peer

    @property
    def address(self) -> str:
        return f"/ip4/{self.host}/tcp/{self.port}/p2p/{self.peer}"

    def launch(self, bootstrap: list[str], inner_step_s: float, trainers: str) -> None:
        words = [sys.executable, "-m", "tests.siege.harness.honest", "--home", str(self.home)]
        words += ["--listen", f"/ip4/{self.host}/tcp/{self.port}"]
        words += ["--data-listen", f"{self.host}:{self.data_port}"]
        words += ["--inner-step-s", str(inner_step_s), "--trainers", trainers]
        words += ["--bootstrap", *bootstrap]
        self.stopped_by_us = False
        with (self.home / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"NO_COLOR": "1"},
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether the node has ended by itself."""
        return self.returncode is not None and not self.stopped_by_us


def _ports(number: int) -> tuple[int, int]:
    """Return the ports of a node.

    The ports are below the range from which Linux assigns ports, and are not used by
    `network_namespaces`. They depend on our process id, so that two sieges can run at the same
    time.
    """
    first = 5_000 + os.getpid() % 300 * 16 + 2 * number
    return first, first + 1


@dataclass(frozen=True, slots=True)
class Field:
    """The honest nodes, and the home of the member that lies."""

    folder: Path
    nodes: tuple[SiegeNode, ...]
    liar: Path
    run: Run
    inner_step_s: float
    trainers: str

    def start(self, *nodes: SiegeNode) -> None:
        for node in nodes or self.nodes:
            others = [other.address for other in self.nodes if other is not node]
            node.launch(others, self.inner_step_s, self.trainers)

    def close(self) -> None:
        for node in self.nodes:
            node.stopped_by_us = True
            node.kill()

    def look(self) -> None:
        for node in self.nodes:
            for _ in node.new_events():
                pass

    def tell_attackers(self, path: Path) -> None:
        """Write the file that tells attackers the nodes' addresses and the liar's home.

        That home contains the run's documents, so attackers know as much as a member.
        """
        victims = [
            {
                "name": node.name,
                "peer": node.peer,
                "host": node.host,
                "port": node.port,
                "data_port": node.data_port,
            }
            for node in self.nodes
        ]
        told: dict[str, object] = {"run": self.run.id, "liar": str(self.liar)}
        told |= {"victims": victims, "strangers": STRANGERS}
        path.write_text(json.dumps(told))


def prepared(
    folder: Path,
    *,
    inner_step_s: float = INNER_STEP_S,
    trainers: str = STAND_IN,
    claims: bool = False,
) -> Field:
    """Make the homes of all nodes and of the liar, and publish a run. Do not start any node.
    `claims`: contributions are claims that the others judge."""
    nodes = []
    for number, name in enumerate(NAMES):
        home = Home(folder / name)
        nodes.append(SiegeNode(name, number, home.root, load_or_create(home.identity)))
    liar = Home(folder / LIAR)
    members = [*(node.peer for node in nodes), load_or_create(liar.identity).peer]
    first = Home(nodes[0].home)
    run = publish(
        first,
        allowed=members,
        founders=members,
        steps=OUTER_STEPS,
        rules=default_policy(),
        inner_steps=INNER_STEPS,
        trust=TrustRules(claims=claims),
    )
    copy_run(first, run, (*(Home(node.home) for node in nodes[1:]), liar))
    return Field(folder, tuple(nodes), liar.root, run, inner_step_s, trainers)

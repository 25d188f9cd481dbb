"""Measure real nodes that have only one version of IP, and a node that changes its network.

    python -m tests.wan.harness.addresses               all of the following; four minutes
    python -m tests.wan.harness.addresses ipv6 ipv4     two nodes train with only that version of IP
    python -m tests.wan.harness.addresses moving        one of three nodes changes its network
    python -m tests.wan.harness.addresses mdns          a new node has only --mdns to find the run

Needs root. The nodes listen at their default addresses and train with fake trainers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from p2ptrain.archive.home import Home
from p2ptrain.identity import load_or_create
from p2ptrain.testing.network_namespaces import opened
from p2ptrain.testing.node_process import DemoNode, Event
from p2ptrain.testing.published import copy_run, policy, publish
from tests.wan.harness.routed_sites import RoutedSites, address, routed_sites

DATA_PORT = 4202
COMMITS = 5
START_S, COMMIT_S = 120.0, 20.0
"""Timeouts in seconds for the first commit, and for each further one."""

NEW_SITE = 9
MOVED_S = 120.0


class Network(Protocol):
    def inside(self, number: int, words: list[str]) -> list[str]: ...


class Node(DemoNode):
    """One node, which trains."""

    def launch(
        self, network: Network, number: int, bootstrap: Sequence[str], *options: str
    ) -> None:
        words = [sys.executable, "-m", "tests.wan.harness.voter", "--home", str(self.home)]
        words += [*options, "--bootstrap", *bootstrap]
        # The locks of ports are files, and the nodes have the same port.
        self.run(network.inside(number, words), XDG_RUNTIME_DIR=str(self.home))

    def addresses(self, kind: str) -> list[str]:
        """Return the node's own addresses of a kind, such as ip6, as it has printed them."""
        return re.findall(rf"listening at (/{kind}/\S+)", self.output())

    def commits(self) -> list[Event]:
        for _ in self.new_events():
            pass
        return [it for it in self.events if it["event"] == "committed" and not it["skipped"]]

    def warnings(self) -> list[str]:
        return re.findall(r"warning: (.*)", self.output())


def prepared(folder: Path, nodes: int) -> list[Node]:
    """Make the homes and publish their run, whose founders are all nodes. All must take part."""
    homes = [Home(folder / f"node{number}") for number in range(nodes)]
    # The node with the largest peer id is called by its neighbours in a reduce.
    homes.sort(key=lambda home: load_or_create(home.identity).peer)
    peers = [load_or_create(home.identity).peer for home in homes]
    rules = policy(participants_min=2)
    run = publish(homes[0], founders=peers, steps=100_000, rules=rules, inner_steps=2)
    copy_run(homes[0], run, homes[1:])
    return [Node(home.root.name, home.root) for home in homes]


def wait_until(holds: Callable[[], object], limit_s: float, what: str) -> float:
    """Wait until `holds` returns something true; return the seconds. Raises TimeoutError."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() > began + limit_s:
            raise TimeoutError(f"not in {limit_s:.0f} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - began


@contextmanager
def training(network: RoutedSites, nodes: int, kind: str) -> Iterator[list[Node]]:
    """Run nodes that know the first one's address of `kind`, until they have committed once."""
    with tempfile.TemporaryDirectory(prefix="p2ptrain-addresses-") as folder:
        made = prepared(Path(folder), nodes)
        try:
            made[0].launch(network, 0, [])
            wait_until(lambda: made[0].addresses(kind), START_S, "the first node listens")
            for number, node in enumerate(made[1:], start=1):
                node.launch(network, number, made[0].addresses(kind)[:1])
            for node in made:
                wait_until(node.commits, START_S, f"{node.name} commits:\n{node.output()[-2000:]}")
            yield made
        finally:
            for node in made:
                node.kill()


def measure_version(version: int) -> dict[str, object]:
    """Two nodes that share only this version of IP find each other and average."""
    with routed_sites(2, version) as network, training(network, 2, f"ip{version}") as nodes:
        since = len(nodes[1].commits())
        limit_s = COMMITS * COMMIT_S
        seconds = wait_until(
            lambda: len(nodes[1].commits()) >= since + COMMITS, limit_s, "further commits"
        )
        return {
            "measured": f"two nodes with IPv{version} only",
            "commits": COMMITS,
            "seconds": round(seconds, 1),
            "warnings": sorted({text for node in nodes for text in node.warnings()}),
        }


CALLS = """
import socket, sys, time
heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(0x0800))
target, port = socket.inet_aton(sys.argv[1]), int(sys.argv[2])
while True:
    packet = heard.recv(2048)
    start = 14 + 4 * (packet[14] & 15)
    to = int.from_bytes(packet[start + 2 : start + 4], "big")
    called = packet[23] == 6 and packet[start + 13] & 18 == 2
    if called and packet[30:34] == target and to == port:
        print(time.monotonic(), flush=True)
        break
"""
"""Prints when the first call (a SYN) to an address and port arrives."""


def heard_again_s(node: Node, other: Node, since_s: float, until_s: float) -> float:
    """Return when `node` last began to hear `other` in this time, as its failure detector says."""
    for _ in node.new_events():
        pass
    peer = load_or_create(Home(other.home).identity).peer
    heard = [it for it in node.events if it["event"] == "peer" and it["peer"] == peer]
    times: list[float] = [it["monotonic_s"] for it in heard if it["health"] == "green"]
    return max(each for each in times if since_s < each <= until_s)


def measure_moving() -> dict[str, object]:
    """The last of three nodes loses its address and, a second later, gets one at another site."""
    with routed_sites(3, 4) as network, training(network, 3, "ip4") as nodes:
        new, laptop = address(NEW_SITE, 4), nodes[-1]
        words = network.inside(2, [sys.executable, "-c", CALLS, new, str(DATA_PORT)])
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as calls:
            try:
                network.leave(2, 2)
                time.sleep(1.0)
                network.join(2, NEW_SITE)
                moved_s, before = time.monotonic(), len(laptop.commits())
                wait_until(
                    lambda: calls.poll() is not None, MOVED_S, f"a call:\n{laptop.output()[-3000:]}"
                )
                assert calls.stdout is not None
                called_s = float(calls.stdout.read())
                wait_until(lambda: len(laptop.commits()) > before, MOVED_S, "the next commit")
                commit_s = laptop.commits()[before]["monotonic_s"]
            finally:
                calls.kill()
        heard_s = [heard_again_s(node, laptop, moved_s, called_s) for node in nodes[:-1]]
        return {
            "measured": "a node changes its network",
            "heard_again_by_all_s": round(max(heard_s) - moved_s, 1),
            "called_at_the_new_address_s": round(called_s - moved_s, 1),
            "next_commit_s": round(commit_s - moved_s, 1),
        }


def measure_mdns() -> dict[str, object]:
    """Two nodes are in one LAN. The second one has only --mdns, and starts before the first one."""
    with tempfile.TemporaryDirectory(prefix="p2ptrain-addresses-") as folder, opened(2) as network:
        for number in range(2):
            words = network.inside(number, ["ip", "route", "add", "default", "dev", "eth0"])
            subprocess.run(words, check=True)
        first, second = prepared(Path(folder), 2)
        Home(second.home).manifest.unlink()
        Home(second.home).allowlist.unlink()
        try:
            second.launch(network, 1, [], "--mdns")
            waiting = "no peer in the local network has been found yet"
            wait_until(lambda: waiting in second.output(), START_S, second.output()[-2000:])
            first.launch(network, 0, [], "--mdns")
            wait_until(lambda: first.addresses("ip4"), START_S, "the first node listens")
            found_s = wait_until(
                lambda: Home(second.home).manifest.exists(), START_S, second.output()[-2000:]
            )
            wait_until(second.commits, START_S, f"a commit:\n{second.output()[-2000:]}")
            return {"measured": "a new node with --mdns only", "run_found_s": round(found_s, 1)}
        finally:
            for node in (first, second):
                node.kill()


MEASURES: dict[str, Callable[[], dict[str, object]]] = {
    "ipv6": lambda: measure_version(6),
    "ipv4": lambda: measure_version(4),
    "moving": measure_moving,
    "mdns": measure_mdns,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.addresses")
    parser.add_argument("measures", nargs="*", choices=[*MEASURES, []])
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.stderr.write("this program makes network namespaces, so it needs root\n")
        return 4
    for name in given.measures or MEASURES:
        sys.stdout.write(json.dumps(MEASURES[name]()) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

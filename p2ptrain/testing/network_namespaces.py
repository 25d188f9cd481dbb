"""The network of test nodes: namespaces joined by a bridge if they are permitted, else loopback.

In namespaces each node has its own address and its own virtual cable. A cut unplugs the cable at
the switch: connections are not refused or reset, so both ends must detect the cut themselves. On
loopback there is no cable, and cuts are not possible.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from p2ptrain.errors import LocalProtocolError

NETWORK = "10.213.0"


def ports(number: int) -> tuple[int, int]:
    """Return the ports for the control plane and the data plane. They depend on this process's id,
    because a node locks its ports for the whole machine, across namespaces, and other tests may be
    running. All ports are below those that Linux assigns automatically."""
    first = 10_000 + os.getpid() % 2200 * 10 + 2 * number
    return first, first + 1


class NodeNetwork:
    """A network for nodes, which are numbered from 0. In this base class, all nodes are on
    loopback."""

    name = "loopback"
    can_cut = can_limit = False

    def address(self, number: int) -> tuple[str, int, int]:
        """Return the host, and the ports of control plane and data plane."""
        return "127.0.0.1", *ports(number)

    def inside(self, number: int, words: list[str]) -> list[str]:
        """Return the command that runs `words` in this node's part of the network."""
        return words

    def cut(self, number: int) -> None:
        raise LocalProtocolError("loopback has no cable to cut")

    def heal(self, number: int) -> None:
        raise LocalProtocolError("loopback has no cable to cut")

    def limit(self, number: int, up_mbit_per_s: float) -> None:
        """Limit what the network accepts from this node, in Mbit/s."""
        raise LocalProtocolError("loopback has no cable to limit")


class Namespaces(NodeNetwork):
    """One namespace for each node, and one for the bridge, so that this machine's own network is
    not changed."""

    name = "network namespaces"
    can_cut = can_limit = True

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._hub = f"p2pt{os.getpid()}hub"

    def address(self, number: int) -> tuple[str, int, int]:
        return f"{NETWORK}.{number + 1}", *ports(number)

    def inside(self, number: int, words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self._of(number), *words]

    def cut(self, number: int) -> None:
        _ip("-n", self._hub, "link", "set", f"n{number}", "down")

    def heal(self, number: int) -> None:
        _ip("-n", self._hub, "link", "set", f"n{number}", "up")

    def limit(self, number: int, up_mbit_per_s: float) -> None:
        shape = f"root tbf rate {up_mbit_per_s:g}mbit burst 64kb latency 50ms".split()
        _ip("netns", "exec", self._of(number), "tc", "qdisc", "add", "dev", "eth0", *shape)

    def build(self) -> None:
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "switch", "up")
        for number in range(self._nodes):
            self._wire(number)

    def _wire(self, number: int) -> None:
        node, hub, cable = self._of(number), self._hub, f"n{number}"
        _ip("netns", "add", node)
        ends = ("type", "veth", "peer", "name", "eth0", "netns", node)
        _ip("-n", hub, "link", "add", cable, *ends)
        _ip("-n", hub, "link", "set", cable, "master", "switch", "up")
        _ip("-n", node, "addr", "add", f"{self.address(number)[0]}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", node, "link", "set", device, "up")

    def remove(self) -> None:
        for name in (self._hub, *map(self._of, range(self._nodes))):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    def _of(self, number: int) -> str:
        return f"p2pt{os.getpid()}n{number}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@contextmanager
def opened(nodes: int, *, loopback: bool = False) -> Iterator[NodeNetwork]:
    """Yield namespaces if this machine permits them, else loopback; remove them at the end."""
    if loopback or os.geteuid() != 0 or shutil.which("ip") is None:
        yield NodeNetwork()
        return
    made = Namespaces(nodes)
    try:
        try:
            made.build()
        except subprocess.CalledProcessError:  # Even root may lack the permission in a container.
            yield NodeNetwork()
        else:
            yield made
    finally:
        made.remove()

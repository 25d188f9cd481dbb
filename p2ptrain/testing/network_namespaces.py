"""The network under the nodes: namespaces joined by a bridge where we may make them, else loopback.

In namespaces each node has an address and a cable of its own, and a cut is a cable pulled at the
switch: nothing is refused, nothing is reset, and both ends are left to find out. On loopback there
is no cable, and cuts are not possible.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from p2ptrain.errors import LocalProtocolError

NETWORK = "10.213.0"


def ports(number: int) -> tuple[int, int]:
    """For control plane and data plane: a node's claim on a port holds for the whole machine,
    whatever namespace it is in, and another harness may be at work. All are below those that Linux
    gives to whoever asks for any."""
    first = 10_000 + os.getpid() % 2200 * 10 + 2 * number
    return first, first + 1


class Place(Protocol):
    """Nodes are numbered from 0."""

    name: str
    can_cut: bool
    can_limit: bool

    def address(self, number: int) -> tuple[str, int, int]:
        """Host, and the ports of control plane and data plane."""

    def inside(self, number: int, words: list[str]) -> list[str]:
        """The command that runs `words` where this node lives."""

    def cut(self, number: int) -> None: ...

    def heal(self, number: int) -> None: ...

    def limit(self, number: int, up_mbit_per_s: float) -> None:
        """Have the network take no more than so much from this node."""


class Loopback:
    """Everybody at 127.0.0.1, on ports of this process's own choosing."""

    name = "loopback"
    can_cut = can_limit = False

    def address(self, number: int) -> tuple[str, int, int]:
        return "127.0.0.1", *ports(number)

    def inside(self, number: int, words: list[str]) -> list[str]:
        return words

    def cut(self, number: int) -> None:
        raise LocalProtocolError("loopback has no cable to cut")

    def heal(self, number: int) -> None:
        raise LocalProtocolError("loopback has no cable to cut")

    def limit(self, number: int, up_mbit_per_s: float) -> None:
        raise LocalProtocolError("loopback has no cable to be slow")


class Namespaces:
    """One namespace for each node, and one that holds the bridge, so that this machine's own
    network is not touched."""

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
        shape = (
            "root",
            "tbf",
            "rate",
            f"{up_mbit_per_s:g}mbit",
            "burst",
            "64kb",
            "latency",
            "50ms",
        )
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
def opened(nodes: int, *, loopback: bool = False) -> Iterator[Place]:
    """The best place that this machine allows; taken apart when the block is left."""
    if loopback or os.geteuid() != 0 or shutil.which("ip") is None:
        yield Loopback()
        return
    made = Namespaces(nodes)
    try:
        try:
            made.build()
        except subprocess.CalledProcessError:  # A container may be root and still not be allowed.
            yield Loopback()
        else:
            yield made
    finally:
        made.remove()

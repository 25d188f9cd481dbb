"""A network of sites in namespaces of this machine: each node has a site of its own, and one router
connects all sites. Unlike the emulator, it passes IPv6, and a node can change its address.

    site 0: 10.80.0.5, 2606:80::5 ── [router] ── site 1: 10.80.1.5, 2606:80:0:1::5
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


def address(site: int, version: int, host: int = 5) -> str:
    return f"10.80.{site}.{host}" if version == 4 else f"2606:80:0:{site:x}::{host}"


class RoutedSites:
    """`nodes` nodes at the sites 0, 1, …, with addresses of the given versions of IP."""

    def __init__(self, nodes: int, versions: tuple[int, ...]) -> None:
        self._names = [f"p2ps{os.getpid()}n{number}" for number in range(nodes)]
        self._router = f"p2ps{os.getpid()}r"
        self._versions = versions

    def inside(self, number: int, words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self._names[number], *words]

    def build(self) -> None:
        for name in (self._router, *self._names):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            if 6 not in self._versions:
                _set(
                    name, "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"
                )
        _set(self._router, "net.ipv4.ip_forward=1")
        if 6 in self._versions:
            _set(self._router, "net.ipv6.conf.all.forwarding=1")
        for number, name in enumerate(self._names):
            ends = ("type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "-n", self._router, "link", "add", f"s{number}", *ends)
            for where, device in ((self._router, f"s{number}"), (name, "eth0")):
                _run("ip", "-n", where, "link", "set", device, "up")
            self.join(number, number)

    def join(self, number: int, site: int) -> None:
        """Give a node the addresses of a site, and let the router serve that site on its cable."""
        name = self._names[number]
        for version in self._versions:
            flag, size = f"-{version}", 24 if version == 4 else 64
            fast = ["nodad"] if version == 6 else []
            ends = ((self._router, f"s{number}", 1), (name, "eth0", 5))
            for where, device, host in ends:
                place = f"{address(site, version, host)}/{size}"
                _run("ip", "-n", where, flag, "addr", "add", place, "dev", device, *fast)
            way = ("via", address(site, version, 1))
            _run("ip", "-n", name, flag, "route", "replace", "default", *way)

    def leave(self, number: int, site: int) -> None:
        """Remove the addresses and the routes of a site from a node and its router."""
        for version in self._versions:
            size = 24 if version == 4 else 64
            ends = ((self._names[number], "eth0", 5), (self._router, f"s{number}", 1))
            for where, device, host in ends:
                place = f"{address(site, version, host)}/{size}"
                _run("ip", "-n", where, f"-{version}", "addr", "del", place, "dev", device)

    def remove(self) -> None:
        for name in (self._router, *self._names):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


def _set(name: str, *settings: str) -> None:
    for setting in settings:
        _run("ip", "netns", "exec", name, "sysctl", "-qw", setting)


@contextmanager
def routed_sites(nodes: int, *versions: int) -> Iterator[RoutedSites]:
    """Build the network, and remove it at the end. Raises CalledProcessError without root."""
    made = RoutedSites(nodes, versions)
    try:
        made.build()
        yield made
    finally:
        made.remove()

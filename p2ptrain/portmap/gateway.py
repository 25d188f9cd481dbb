"""Find the router of this machine: the default gateway, and our own address towards it.

Only Linux tells this in files, under /proc/net. Elsewhere the answer is `NoGateway` with the reason
in words; nothing is guessed. No packet is sent: `connect` on a UDP socket only chooses an address.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Literal

from p2ptrain.portmap.values import IPAddress

Version = Literal[4, 6]

ROUTES = {4: Path("/proc/net/route"), 6: Path("/proc/net/ipv6_route")}

UP, GATEWAY = 0x1, 0x2
"""Flags of a route: it is usable, and it leads to a gateway (RTF_UP and RTF_GATEWAY)."""

LINES_MAX = 4096
"""Maximum number of routes that are read. A machine with more is a router itself."""

_OUTSIDE = "2001:db8::1"
"""An address reserved for examples. The route to it is the default route."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """The router's `address`, the `interface` that leads to it, and our address `local` there."""

    address: IPAddress
    local: IPAddress
    interface: str = ""

    def __post_init__(self) -> None:
        assert self.address.version == self.local.version

    def sockaddr(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """Return the address for `connect`. Link-local IPv6 addresses need the interface's number.
        Raises OSError: the interface is gone."""
        if self.address.version == 4:
            return str(self.address), port
        scope = socket.if_nametoindex(self.interface) if self.address.is_link_local else 0
        return str(self.address), port, 0, scope


@dataclass(frozen=True, slots=True)
class NoGateway:
    """No router was found. `reason` continues the sentence "No port is open: …"."""

    reason: str


def find_gateway(version: Version, routes: Path | None = None) -> Gateway | NoGateway:
    """Return the default gateway for IPv4 or IPv6. `routes` is the file with the kernel's routes;
    by default the one of this machine."""
    path = ROUTES[version] if routes is None else routes
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return NoGateway(f"this system does not show its routes in {path}, so no router is known")
    found = best_ipv4(text) if version == 4 else best_ipv6(text)
    if found is None:
        return NoGateway(f"this machine has no IPv{version} router")
    address, interface = found
    try:
        return Gateway(address, _own_address(address), interface)
    except OSError as exc:
        return NoGateway(f"this machine has no IPv{version} address ({exc.strerror or exc})")


def best_ipv4(text: str) -> tuple[IPv4Address, str] | None:
    """Return the default gateway with the lowest metric, and its interface, from the text of
    /proc/net/route."""
    found = []
    for fields in _lines(text):
        try:
            interface, destination, gateway, flags, _, _, metric, mask = fields[:8]
            if int(destination, 16) or int(mask, 16) or int(flags, 16) & 3 != UP | GATEWAY:
                continue
            # The file shows the four bytes of an address as a number of this machine's byte order.
            address = IPv4Address(socket.ntohl(int(gateway, 16)))
            found.append((int(metric), address, interface))
        except (ValueError, OverflowError):
            continue
    return min(found)[1:] if found else None


def best_ipv6(text: str) -> tuple[IPv6Address, str] | None:
    """Return the default gateway with the lowest metric, and its interface, from the text of
    /proc/net/ipv6_route."""
    found = []
    for fields in _lines(text):
        try:
            destination, prefix, _, _, gateway, metric, _, _, flags, interface = fields[:10]
            if int(destination, 16) or int(prefix, 16) or int(flags, 16) & 3 != UP | GATEWAY:
                continue
            address = IPv6Address(int(gateway, 16))
            found.append((int(metric, 16), address, interface))
        except ValueError:
            continue
    return min(found)[1:] if found else None


def _lines(text: str) -> Iterator[list[str]]:
    for line in text.splitlines()[:LINES_MAX]:
        yield line.split()


def _own_address(gateway: IPAddress) -> IPAddress:
    """Return the address of this machine that the router sees. For IPv6, this is the address from
    which this machine sends to the internet, since a router's own address is usually link-local.
    Raises OSError."""
    family = socket.AF_INET if gateway.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((str(gateway) if gateway.version == 4 else _OUTSIDE, 9))
        host = str(probe.getsockname()[0])
    return IPv4Address(host) if gateway.version == 4 else IPv6Address(host.partition("%")[0])

"""Sites: groups of addresses that usually belong to one customer of a provider.

Sites share limits on connections from unauthenticated peers. Members at different sites are also
witnesses: they can tell whether a node is reached from outside its own site.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

ARRIVALS_MAX = 64
"""Maximum number of sites whose newest connection is remembered."""


def site_of(host: str) -> str:
    """Return the site of `host`: all the addresses that one customer usually has, which are one
    IPv4 address or a /64 IPv6 network.

    Raises ValueError: `host` is not an IP address.
    """
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ip_network((address, 64), strict=False))


def plain_host(host: str) -> str:
    """Return the IP address `host` without a zone. An IPv4 address in IPv6 form, which sockets that
    listen on :: report, becomes a plain IPv4 address."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or address)
    return str(address)


def is_this_machine(host: str) -> bool:
    """Return whether a connection to `host`, an IP address or a site, stays on this machine. This
    is true for loopback addresses, and for 0.0.0.0 and ::, which the kernel treats like loopback
    addresses."""
    address = ip_address(host.partition("%")[0].partition("/")[0])
    if isinstance(address, IPv6Address):
        if str(address) == "::":  # `host` is :: or ::/64, which is the site of ::1
            return True
        address = address.ipv4_mapped or address
    return address.is_loopback or address.is_unspecified


def is_elsewhere(site: str, own: Iterable[str], near: Iterable[str]) -> bool:
    """Return whether `site` is neither this node's own site nor in its local network.

    `own` are this node's addresses, including the one at which others see it. `near` are the
    networks of this machine's interfaces, such as 192.168.1.0/24. Only private addresses can be
    near: two machines with public addresses in one network are usually different sites. In private
    networks without an own interface, a router lies in between.
    """
    if not site or is_this_machine(site) or site in map(site_of, own):
        return False
    address = ip_network(site).network_address
    if address.is_global:
        return True
    networks = (ip_network(each, strict=False) for each in near)
    return not any(each.version == address.version and address in each for each in networks)


class Arrivals:
    """When the newest connection from each site arrived. Only the newest sites are kept. `now` must
    never decrease. Not thread-safe."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        """The site with the newest connection comes last."""

    def note(self, host: str, now: float) -> None:
        site = site_of(host)
        self._times.pop(site, None)
        self._times[site] = now
        if len(self._times) > ARRIVALS_MAX:
            del self._times[next(iter(self._times))]

    def by_site(self) -> dict[str, float]:
        return dict(self._times)

"""The group of addresses with which a connection is counted before its peer is authenticated."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network


def site_of(host: str) -> str:
    """Return the addresses that one customer has: an IPv4 address, or a /64 network in IPv6.

    Raises ValueError: `host` is no address.
    """
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ip_network((address, 64), strict=False))


def is_this_machine(host: str) -> bool:
    """Return whether a connection to `host`, an IP address or a site, stays on this machine: a
    loopback address, or 0.0.0.0 and ::, which the kernel takes for one."""
    address = ip_address(host.partition("%")[0].partition("/")[0])
    if isinstance(address, IPv6Address):
        if str(address) == "::":  # also the site of ::1
            return True
        address = address.ipv4_mapped or address
    return address.is_loopback or address.is_unspecified

"""Whom a connection is counted with before anybody has said who they are: by address alone."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address, ip_network


def site_of(host: str) -> str:
    """What one customer has: an address, or 2**64 of them in IPv6.

    Raises ValueError: `host` is no address.
    """
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ip_network((address, 64), strict=False))

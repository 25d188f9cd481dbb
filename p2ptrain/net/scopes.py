"""From how far away an address can be dialled, judged by its text alone.

The module does not look at this machine or check whether anybody listens. A public address may be
behind a firewall, and DNS names are not looked up.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum

from p2ptrain.net.addresses import Address

_SHARED = ipaddress.ip_network("100.64.0.0/10")
_EXAMPLES = [
    ipaddress.ip_network(network)
    for network in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
]


class AddressScope(StrEnum):
    LOOPBACK = "loopback"
    PRIVATE = "private"
    SHARED = "shared"
    """A provider's own network, with many customers behind one public address."""
    EXAMPLE = "example"
    """An address reserved for documentation, which no machine has."""
    PUBLIC = "public"
    NAME = "name"

    @property
    def code(self) -> str:
        """Code of the warning that others cannot dial such an address; "" if there is no
        warning."""
        return _CODES.get(self, "")

    @property
    def words(self) -> str:
        """The problem with such an address, as a phrase that follows "is"; "" if there is none."""
        return _WORDS.get(self, "")


_CODES = {
    AddressScope.LOOPBACK: "ADDR-LOOPBACK",
    AddressScope.PRIVATE: "ADDR-PRIVATE",
    AddressScope.SHARED: "ADDR-PRIVATE",
}

_WORDS = {
    AddressScope.LOOPBACK: "this machine's own: no other machine can dial it",
    AddressScope.PRIVATE: "in a private network: it cannot be dialled from outside",
    AddressScope.SHARED: "in a provider's own network (carrier NAT): it cannot be dialled "
    "from outside",
    AddressScope.EXAMPLE: "reserved for documentation: no machine has it",
}


def scope_of(address: Address) -> AddressScope:
    """Return the scope of an address. 0.0.0.0 and :: count as loopback: a peer that dials them
    reaches its own machine."""
    if address.is_name:
        return AddressScope.NAME
    host = ipaddress.ip_address(address.host)
    if isinstance(host, ipaddress.IPv6Address):
        host = host.ipv4_mapped or host
    if host.is_loopback or host.is_unspecified:
        return AddressScope.LOOPBACK
    if host in _SHARED:
        return AddressScope.SHARED
    if any(host in network for network in _EXAMPLES):
        return AddressScope.EXAMPLE
    return AddressScope.PRIVATE if host.is_private or host.is_link_local else AddressScope.PUBLIC

"""The addresses of this machine, as its own network interfaces have them."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

import psutil

from p2ptrain.net.listening import outward_host


@dataclass(frozen=True, slots=True)
class OwnAddresses:
    """`hosts` are all IP addresses of this machine's interfaces. `networks` are the IPv4 networks
    of these interfaces, such as 192.168.1.0/255.255.255.0. `lan_host` is the IPv4 address that this
    machine uses to reach other networks; "" if it has none. `ipv6_host` is the same for IPv6."""

    hosts: tuple[str, ...]
    networks: tuple[str, ...]
    lan_host: str
    ipv6_host: str = ""

    @property
    def public_ipv6(self) -> str:
        """The IPv6 address at which others in the internet may reach this machine; "" if there is
        none. The one that this machine uses itself is preferred."""
        given = (self.ipv6_host, *self.hosts)
        return next((each for each in given if ":" in each and ip_address(each).is_global), "")

    @property
    def local_ipv6(self) -> str:
        """A private IPv6 address, such as fd00::5, that others in the local network can dial; "" if
        there is none."""
        given = [ip_address(each) for each in (self.ipv6_host, *self.hosts) if ":" in each]
        usable = (each for each in given if not each.is_link_local and not each.is_loopback)
        return next((str(each) for each in usable if each.is_private), "")


def own_addresses() -> OwnAddresses:
    """Return the addresses that this machine has now. No packet is sent."""
    hosts, networks = list[str](), list[str]()
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family.name in ("AF_INET", "AF_INET6"):
                hosts.append(each.address.partition("%")[0])
            if each.family.name == "AF_INET" and each.netmask:
                networks.append(f"{each.address}/{each.netmask}")
    return OwnAddresses(
        tuple(hosts), tuple(networks), outward_host(six=False), outward_host(six=True)
    )

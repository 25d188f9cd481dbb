"""The addresses of this machine, as its own network interfaces have them."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from p2ptrain.net.listening import outward_host


@dataclass(frozen=True, slots=True)
class OwnAddresses:
    """`hosts` are all IP addresses of this machine's interfaces. `networks` are the IPv4 networks
    of these interfaces, such as 192.168.1.0/255.255.255.0. `lan_host` is the IPv4 address that this
    machine uses to reach other networks; "" if it has none."""

    hosts: tuple[str, ...]
    networks: tuple[str, ...]
    lan_host: str


def own_addresses() -> OwnAddresses:
    """Return the addresses that this machine has now. No packet is sent."""
    hosts, networks = list[str](), list[str]()
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family.name in ("AF_INET", "AF_INET6"):
                hosts.append(each.address.partition("%")[0])
            if each.family.name == "AF_INET" and each.netmask:
                networks.append(f"{each.address}/{each.netmask}")
    return OwnAddresses(tuple(hosts), tuple(networks), outward_host(six=False))

"""Find the ports for which a router can be asked: those that listen on more than this machine."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from p2ptrain.address_group import is_this_machine
from p2ptrain.node.state.port_mappings import OwnPorts
from p2ptrain.portmap.gateway import Version

EVERY_ADDRESS = ("0.0.0.0", "::")

KINDS: dict[str, Version] = {"ip4": 4, "ip6": 6}


def own_ports(control: Sequence[str], data: tuple[str, int]) -> dict[Version, OwnPorts]:
    """Return the ports for each version of IP that can be reached from outside this machine.

    `control` are the addresses that the control plane is bound to, such as /ip4/0.0.0.0/tcp/4201.
    `data` is the host and port that the data plane is bound to."""
    control_ports = _control_ports(control)
    data_host, data_port = data
    data_versions = _versions(data_host)
    return {
        version: OwnPorts(
            control_ports.get(version, 0), data_port if version in data_versions else 0
        )
        for version in KINDS.values()
        if version in control_ports or version in data_versions
    }


def _control_ports(addresses: Sequence[str]) -> dict[Version, int]:
    found: dict[Version, int] = {}
    for address in addresses:
        parts = address.split("/")
        version = KINDS.get(parts[1]) if len(parts) > 4 else None
        if version is not None and (parts[2] in EVERY_ADDRESS or not is_this_machine(parts[2])):
            found.setdefault(version, int(parts[4]))
    return found


def _versions(host: str) -> set[Version]:
    """Return the versions of IP by which a socket bound to `host` is reached from outside."""
    if host == "::":
        return {4, 6}
    if host == "0.0.0.0":
        return {4}
    if is_this_machine(host):
        return set()
    return {4} if ip_address(host.partition("%")[0]).version == 4 else {6}

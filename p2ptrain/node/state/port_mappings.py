"""The ports that the router has opened for this node. Written by `port_mapping/`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from p2ptrain.portmap import IPAddress, Kind, OpenPort, Standing, Verdict, candidates, judge
from p2ptrain.portmap.gateway import Version

OBSERVED_MAX = 16
"""Maximum number of observed addresses that are kept."""

NOT_ASKED = "this node has not asked a router to open its ports"


@dataclass(frozen=True, slots=True)
class OwnPorts:
    """The ports that this node listens on for one version of IP; 0 if it does not listen."""

    control: int = 0
    data: int = 0


@dataclass(frozen=True, slots=True)
class MappedAddress:
    """The address at which peers may reach both planes, once a member has connected through it. A
    port of 0 is not open."""

    address: IPAddress
    control_port: int
    data_port: int


@dataclass(frozen=True, slots=True)
class RouterMapping:
    """The result of asking the router of one version of IP. If nothing was asked, `standing` is
    None and `not_asked` says why."""

    ports: OwnPorts
    standing: Standing | None = None
    local: IPAddress | None = None
    """Our own address in the local network."""
    not_asked: str = NOT_ASKED


@dataclass(slots=True)
class PortMappings:
    routers: dict[Version, RouterMapping] = field(default_factory=dict)
    """The result for IPv4 (4) and IPv6 (6), if this node listens there."""
    not_asked: str = NOT_ASKED
    """Why no router is asked, if `routers` is empty."""
    observed: frozenset[IPAddress] = frozenset()
    """The addresses at which members at other sites see this node."""

    def note_observed(self, addresses: Iterable[IPAddress]) -> None:
        """Note the addresses at which members at other sites see this node, instead of the earlier
        ones. Any task may call this."""
        self.observed = frozenset(sorted(addresses, key=str)[:OBSERVED_MAX])

    def verdict(self, version: Version = 4) -> Verdict:
        """Return what the router has opened, in one word and in a sentence for the user."""
        mapping = self.routers.get(version)
        if mapping is None:
            return Verdict(Kind.NONE, self.not_asked)
        if mapping.standing is None:
            return Verdict(Kind.NONE, mapping.not_asked)
        return judge(mapping.standing, self.observed, mapping.local)

    def open_ports(self, version: Version = 4) -> tuple[OpenPort, ...]:
        """Return the ports that the router has opened, whether or not peers can reach them."""
        mapping = self.routers.get(version)
        return () if mapping is None or mapping.standing is None else mapping.standing.open_ports

    def candidate(self, version: Version = 4) -> MappedAddress | None:
        """Return the address at which peers may reach this node through its router; None if there
        is none. Do not announce it before a member has connected through it: the router may lie, or
        another NAT may lie behind it."""
        mapping = self.routers.get(version)
        if mapping is None or mapping.standing is None:
            return None
        opened = candidates(self.verdict(version), mapping.standing)
        if not opened:
            return None
        address = next(iter(opened.values()))[0]
        _, control_port = opened.get(mapping.ports.control, (address, 0))
        _, data_port = opened.get(mapping.ports.data, (address, 0))
        return MappedAddress(address, control_port, data_port)

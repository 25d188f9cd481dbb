"""The addresses to which a node may send packets because a peer asked for it.

To punch a hole, a node sends packets to an address that the other peer names. A lying peer could
name the address of somebody else. So this rule holds, and `refusal` enforces it:

    A node calls only hosts at which the node itself, or the member that forwarded the request,
    sees the requesting peer. The peer chooses only the ports, which are at least 1024.

"Sees" means: the source address of a connection on which that peer proved its identity. Everybody
can check only their own connections, so a forwarding member is believed as far as this:

- A liar alone can make others call only its own address, or its neighbours behind the same carrier
  NAT. The calls are TCP handshakes without data, and a few TLS hellos if something answers.
- A liar together with a member that forwards its request can name any public address. Then the node
  calls that address for two seconds. It never calls an address of its own network in this way.

The price is that peers behind a NAT with several outside addresses sometimes cannot be punched.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address

from p2ptrain.address_group import site_of
from p2ptrain.encoding import fields
from p2ptrain.errors import RemoteProtocolError

PORT_MIN = 1024
"""Lowest port that may be called. NATs do not give lower ones to clients, and services use them."""
HOST_CHARACTERS_MAX = 45
"""The longest IPv6 address as text, with an IPv4 address at its end."""
STREAMS_MAX = 8
"""Maximum number of candidates in a message, one for each stream. It is twice the maximum number of
streams between two neighbours in a reduce."""


class Scope(IntEnum):
    """How far an address is valid."""

    THIS_MACHINE = 0
    PRIVATE = 1
    PUBLIC = 2


@dataclass(frozen=True, slots=True)
class ExternalAddress:
    """The external address of a port of a peer: an IP address and a port.

    Raises:
        RemoteProtocolError: the host is not an IP address in its usual form, or the port is out of
            range.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        short = 0 < len(self.host) <= HOST_CHARACTERS_MAX
        if not short or self.host != _usual_form(self.host):
            raise RemoteProtocolError("an external address is not an IP address in its usual form")
        if not PORT_MIN <= self.port < 1 << 16:
            raise RemoteProtocolError(f"an external address's port is out of range: {self.port}")

    @classmethod
    def of(cls, host: str, port: int) -> ExternalAddress:
        """Return the address of a socket. Raises RemoteProtocolError."""
        return cls(_usual_form(host), port)

    def to_wire(self) -> dict[str, object]:
        return {"host": self.host, "port": self.port}

    @classmethod
    def from_wire(cls, value: object) -> ExternalAddress:
        """Parse an address that a peer sent. Raises RemoteProtocolError if it is malformed."""
        wire = fields(value, host=str, port=int)
        host, port = wire["host"], wire["port"]
        assert isinstance(host, str)
        assert isinstance(port, int)
        return cls(host, port)


@dataclass(frozen=True, slots=True)
class Sightings:
    """Where a peer and this node itself are seen, for a decision about candidates. All hosts are IP
    addresses."""

    by_us: frozenset[str] = frozenset()
    """Hosts from which this peer's connections to us come."""
    by_forwarder: frozenset[str] = frozenset()
    """Hosts at which the member that forwarded the message sees this peer."""
    own_hosts: frozenset[str] = frozenset()
    """The hosts at which members see us."""
    gateways: frozenset[str] = frozenset()
    """The inside addresses of our own routers."""

    @property
    def scope(self) -> Scope:
        """The narrowest scope in which members see us. If that is private, members of the run share
        a private network with us, and a private address means the same to us and to them."""
        return min(map(scope_of, self.own_hosts), default=Scope.PUBLIC)


def refusal(candidates: Collection[ExternalAddress], sightings: Sightings) -> str:
    """Return why this node may not call `candidates`; "" if it may call all of them."""
    if not 0 < len(candidates) <= STREAMS_MAX:
        return f"it names {len(candidates)} addresses; one to {STREAMS_MAX} are allowed"
    ours, forwarded = _sites(sightings.by_us), _sites(sightings.by_forwarder)
    for host in {each.host for each in candidates}:
        if not _may_ever_be_called(host) or host in sightings.gateways:
            return f"{host} is not the address of a peer"
        scope = scope_of(host)
        seen_by_us = site_of(host) in ours
        if not seen_by_us and site_of(host) not in forwarded:
            return f"nobody sees that peer at {host}"
        if scope < sightings.scope and not (seen_by_us and scope is Scope.PRIVATE):
            return f"{host} is an address of a private network that we do not share"
    return ""


def scope_of(host: str) -> Scope:
    """Return how far the IP address `host` is valid. Raises ValueError if it is malformed."""
    address = ip_address(host)
    if address.is_loopback:
        return Scope.THIS_MACHINE
    return Scope.PUBLIC if address.is_global else Scope.PRIVATE


def _sites(hosts: Collection[str]) -> set[str]:
    """Return the sites of `hosts`. A peer's connections may come from several IPv6 addresses of its
    /64 network, which belongs to one customer."""
    return {site_of(host) for host in hosts}


def _may_ever_be_called(host: str) -> bool:
    address = ip_address(host)
    return not (
        address.is_multicast
        or address.is_unspecified
        or address.is_link_local
        or (isinstance(address, IPv4Address) and address.is_reserved)
    )


def _usual_form(host: str) -> str:
    """Return an IP address in the form in which Python writes it. An IPv4 address inside an IPv6
    address becomes an IPv4 address. Return "" if `host` is not an IP address."""
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return ""
        address = address.ipv4_mapped or address
    return str(address)

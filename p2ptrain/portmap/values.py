"""The requests to a router and its replies, independent of the protocol that carries them.

A router's reply is data from the local network: anybody there might have sent it. So every value is
checked on construction, and a reply with an impossible value is refused with RemoteProtocolError.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from ipaddress import IPv4Address, IPv6Address

from p2ptrain.errors import RemoteProtocolError

IPAddress = IPv4Address | IPv6Address

PORT_MAX = 65_535
NONCE_BYTES = 12
"""Length of the nonce that PCP uses to tell the owner of a mapping (RFC 6887, section 11.1)."""


class Protocol(StrEnum):
    """The protocols that open a port on a router, in the order in which they are tried: the cheap
    and exact ones first."""

    PCP = "PCP"
    NAT_PMP = "NAT-PMP"
    UPNP = "UPnP"


class Refusal(Enum):
    UNSUPPORTED = "unsupported"
    """The router does not have the protocol, or not for TCP. It need not be asked again."""
    DENIED = "denied"
    """The router's owner has not allowed it."""
    NO_ADDRESS = "no address"
    """The router says that it has no public address of its own."""
    TEMPORARY = "temporary"
    """The router cannot do it now."""


@dataclass(frozen=True, slots=True)
class MapRequest:
    """Open `internal_port` (TCP) for `lifetime_s` seconds, preferably as `external_port`."""

    protocol: Protocol
    internal_port: int
    external_port: int
    lifetime_s: int
    nonce: bytes

    def __post_init__(self) -> None:
        assert 0 < self.internal_port <= PORT_MAX
        assert 0 <= self.external_port <= PORT_MAX
        assert self.lifetime_s >= 0
        assert len(self.nonce) == NONCE_BYTES


@dataclass(frozen=True, slots=True)
class UnmapRequest:
    """Close `internal_port`, which the router opened as `external_port`."""

    protocol: Protocol
    internal_port: int
    external_port: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """Ask for signs that the router has restarted or has a new external address.
    `external_ports` are the mapped ports."""

    protocol: Protocol
    external_ports: tuple[int, ...]


Request = MapRequest | UnmapRequest | CheckRequest


@dataclass(frozen=True, slots=True)
class Granted:
    """The router has opened the port as `port` of `address`, for `lifetime_s` seconds. `uptime_s`
    is the number of seconds since the router's start; None if the protocol does not report it."""

    address: IPAddress
    port: int
    lifetime_s: int
    uptime_s: int | None = None

    def __post_init__(self) -> None:
        check_external(self.address)
        if not 0 < self.port <= PORT_MAX:
            raise RemoteProtocolError("the router names an external port that does not exist")


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check. `address` is None if the protocol does not report it. `mapped` is
    False if a mapping is missing."""

    address: IPAddress | None = None
    uptime_s: int | None = None
    mapped: bool = True

    def __post_init__(self) -> None:
        if self.address is not None:
            check_external(self.address)


@dataclass(frozen=True, slots=True)
class Closed:
    """The router has closed the port."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The router answered, but does not open the port. `reason` continues the sentence "Your router
    did not open the port: …"."""

    kind: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing that answers by this protocol was found. `reason` says what was tried."""

    reason: str


Reply = Granted | Checked | Closed | Refused | Silent


def check_external(address: IPAddress) -> None:
    """Raises RemoteProtocolError: no router can have `address` as its external address."""
    if address.is_unspecified or address.is_loopback or address.is_multicast:
        raise RemoteProtocolError(f"the router's external address {address} is not possible")
    if address.is_link_local or address == IPv4Address("255.255.255.255"):
        raise RemoteProtocolError(f"the router's external address {address} is not possible")

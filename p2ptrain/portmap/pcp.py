"""Messages of PCP (RFC 6887), which opens a TCP port on an IPv4 NAT or on an IPv6 firewall.

The same request serves both. For IPv4, the router translates an external address and port. For
IPv6, it only lets connections to the client's own address through ("pinhole"), so the external
address and port are the client's.

    request                                  response
     0  version 2                             0  version 2
     1  opcode                                1  128 + opcode
     2  reserved                              3  result code
     4  lifetime                              4  lifetime
     8  client's address                      8  epoch (seconds since the router's start)
    24  MAP: nonce, protocol 6, ports, address, as 36 bytes, in both directions

This module does not send anything and does not know the time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.portmap.values import NONCE_BYTES, PORT_MAX, IPAddress, Refusal

VERSION = 2
ANNOUNCE, MAP = 0, 1
RESPONSE = 0x80
TCP = 6
HEADER_BYTES = 24
MAP_BYTES = 36
BYTES_MAX = 1100
"""Maximum length of a PCP message (RFC 6887, section 7)."""

LIFETIME_MAX = 2**32 - 1
_V4_MAPPED = 0xFFFF << 32

SUCCESS = 0
RESULTS = {
    1: (Refusal.UNSUPPORTED, "it speaks a different version of PCP"),
    2: (Refusal.DENIED, "its settings do not allow this"),
    3: (Refusal.TEMPORARY, "it calls the request malformed"),
    4: (Refusal.UNSUPPORTED, "its PCP cannot open ports"),
    5: (Refusal.TEMPORARY, "its PCP requires an option that is not known"),
    6: (Refusal.TEMPORARY, "it calls an option malformed"),
    7: (Refusal.NO_ADDRESS, "it has no connection to the internet, or no public address"),
    8: (Refusal.TEMPORARY, "it has no room for more open ports"),
    9: (Refusal.UNSUPPORTED, "its PCP cannot open TCP ports"),
    10: (Refusal.TEMPORARY, "this machine has as many open ports as it allows"),
    11: (Refusal.TEMPORARY, "it cannot give this machine an external port"),
    12: (Refusal.TEMPORARY, "another NAT lies between this machine and it"),
    13: (Refusal.TEMPORARY, "it has no room for more remote peers"),
}
"""The result codes of RFC 6887, section 7.4, in words that continue "Your router did not open the
port: …"."""


@dataclass(frozen=True, slots=True)
class MapMessage:
    """A request to open `internal_port` of `client` for `lifetime_s` seconds; 0 closes the port.
    `nonce` must be the same in each renewal. A `suggested_port` of 0 leaves the choice to the
    router."""

    client: IPAddress
    nonce: bytes
    internal_port: int
    lifetime_s: int
    suggested_port: int = 0
    suggested_address: IPAddress | None = None

    def __post_init__(self) -> None:
        assert len(self.nonce) == NONCE_BYTES
        assert 0 < self.internal_port <= PORT_MAX
        assert 0 <= self.suggested_port <= PORT_MAX
        assert 0 <= self.lifetime_s <= LIFETIME_MAX
        suggested = self.suggested_address
        assert suggested is None or suggested.version == self.client.version

    def to_bytes(self) -> bytes:
        nothing = IPv4Address(0) if self.client.version == 4 else IPv6Address(0)
        suggested = nothing if self.suggested_address is None else self.suggested_address
        ports = struct.pack(">B3xHH", TCP, self.internal_port, self.suggested_port)
        header = _header(MAP, self.lifetime_s, self.client)
        return header + self.nonce + ports + _sixteen(suggested)


@dataclass(frozen=True, slots=True)
class MapResponse:
    """The answer to a MapMessage. The last three fields only count if `result` is 0."""

    result: int
    lifetime_s: int
    uptime_s: int
    nonce: bytes
    internal_port: int
    external_port: int
    external_address: IPAddress


@dataclass(frozen=True, slots=True)
class Announcement:
    """The answer to an ANNOUNCE request, which asks for the router's clock only."""

    result: int
    uptime_s: int


def announce_request(client: IPAddress) -> bytes:
    return _header(ANNOUNCE, 0, client)


def decode_map(data: bytes) -> MapResponse:
    """Raises RemoteProtocolError: `data` is not a response to a request to open a TCP port."""
    result, lifetime_s, uptime_s = _response(data, MAP, HEADER_BYTES + MAP_BYTES)
    nonce = data[24:36]
    protocol, internal, external = struct.unpack(">B3xHH", data[36:44])
    if protocol != TCP:
        raise RemoteProtocolError("a PCP response is about a protocol other than TCP")
    address = _address(data[44:60])
    return MapResponse(result, lifetime_s, uptime_s, nonce, internal, external, address)


def decode_announcement(data: bytes) -> Announcement:
    """Raises RemoteProtocolError: `data` is not a response to an ANNOUNCE request."""
    result, _, uptime_s = _response(data, ANNOUNCE, HEADER_BYTES)
    return Announcement(result, uptime_s)


def is_other_version(data: bytes) -> bool:
    """Return whether `data` says that the router lacks this version of PCP. A router that has only
    NAT-PMP answers with version 0 and result 1 (RFC 6887, section 9, and RFC 6886, section 3.5)."""
    if len(data) < 4 or not data[1] & RESPONSE or len(data) > BYTES_MAX:
        return False
    return data[0] != VERSION and struct.unpack(">H", data[2:4])[0] & 0xFF == 1


def _header(opcode: int, lifetime_s: int, client: IPAddress) -> bytes:
    return struct.pack(">BBxxI", VERSION, opcode, lifetime_s) + _sixteen(client)


def _response(data: bytes, opcode: int, bytes_min: int) -> tuple[int, int, int]:
    """Return result, lifetime and epoch. Raises RemoteProtocolError."""
    if not bytes_min <= len(data) <= BYTES_MAX or len(data) % 4:
        raise RemoteProtocolError(f"a PCP response has {len(data)} bytes")
    version, code, result, lifetime_s, uptime_s = struct.unpack(">BBxBII", data[:12])
    if version != VERSION or code != RESPONSE + opcode:
        raise RemoteProtocolError("a message is not the PCP response that was expected")
    return result, lifetime_s, uptime_s


def _sixteen(address: IPAddress) -> bytes:
    """Return the address as 16 bytes; an IPv4 address as ::ffff:a.b.c.d."""
    value = int(address)
    return (value | _V4_MAPPED if address.version == 4 else value).to_bytes(16, "big")


def _address(data: bytes) -> IPAddress:
    address = IPv6Address(data)
    return address.ipv4_mapped or address

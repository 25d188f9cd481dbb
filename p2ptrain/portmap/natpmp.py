"""Messages of NAT-PMP (RFC 6886), the older and simpler protocol before PCP; IPv4 only.

    request                                   response
    address:  version 0, opcode 0             0, 128, result (2), epoch (4), address (4)
    open TCP: 0, 2, reserved (2),             0, 130, result (2), epoch (4),
              internal port (2),                 internal port (2), external port (2),
              external port (2), lifetime (4)    lifetime (4)

An error response may end after the epoch. This module does not send anything and does not know the
time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.portmap.values import PORT_MAX, Refusal

VERSION = 0
ADDRESS, MAP_TCP = 0, 2
RESPONSE = 0x80
BYTES_MAX = 1100
"""Maximum length of a response. Responses have 16 bytes at most, but a router that has PCP too may
send more (RFC 6886, section 3.5)."""

ERROR_BYTES, ADDRESS_BYTES, MAP_BYTES = 8, 12, 16
LIFETIME_MAX = 2**32 - 1

SUCCESS = 0
RESULTS = {
    1: (Refusal.UNSUPPORTED, "it does not have NAT-PMP"),
    2: (Refusal.DENIED, "its settings do not allow this"),
    3: (Refusal.NO_ADDRESS, "it has no connection to the internet, or no public address"),
    4: (Refusal.TEMPORARY, "it has no room for more open ports"),
    5: (Refusal.UNSUPPORTED, "its NAT-PMP cannot open TCP ports"),
}
"""The result codes of RFC 6886, section 3.5, in words that continue "Your router did not open the
port: …"."""

ADDRESS_REQUEST = struct.pack(">BB", VERSION, ADDRESS)


@dataclass(frozen=True, slots=True)
class AddressResponse:
    """The router's clock and external address. `address` is None if `result` is not 0."""

    result: int
    uptime_s: int
    address: IPv4Address | None


@dataclass(frozen=True, slots=True)
class MapResponse:
    """The answer to a request for a port. The last three fields only count if `result` is 0."""

    result: int
    uptime_s: int
    internal_port: int = 0
    external_port: int = 0
    lifetime_s: int = 0


def map_request(internal_port: int, external_port: int, lifetime_s: int) -> bytes:
    """Return a request to open a TCP port. With external port 0 and lifetime 0 it closes the port
    (RFC 6886, section 3.4)."""
    assert 0 < internal_port <= PORT_MAX
    assert 0 <= external_port <= PORT_MAX
    assert 0 <= lifetime_s <= LIFETIME_MAX
    return struct.pack(">BBxxHHI", VERSION, MAP_TCP, internal_port, external_port, lifetime_s)


def decode_address(data: bytes) -> AddressResponse:
    """Raises RemoteProtocolError: `data` is not a response to an address request."""
    result, uptime_s = _response(data, ADDRESS, ADDRESS_BYTES)
    address = None if result else IPv4Address(data[8:12])
    return AddressResponse(result, uptime_s, address)


def decode_map(data: bytes) -> MapResponse:
    """Raises RemoteProtocolError: `data` is not a response to a request to open a TCP port."""
    result, uptime_s = _response(data, MAP_TCP, MAP_BYTES)
    if result:
        return MapResponse(result, uptime_s)
    return MapResponse(result, uptime_s, *struct.unpack(">HHI", data[8:16]))


def _response(data: bytes, opcode: int, bytes_min: int) -> tuple[int, int]:
    """Return result and epoch. Raises RemoteProtocolError."""
    if not ERROR_BYTES <= len(data) <= BYTES_MAX:
        raise RemoteProtocolError(f"a NAT-PMP response has {len(data)} bytes")
    version, code, result, uptime_s = struct.unpack(">BBHI", data[:ERROR_BYTES])
    if version != VERSION or code != RESPONSE + opcode:
        raise RemoteProtocolError("a message is not the NAT-PMP response that was expected")
    if result == SUCCESS and len(data) < bytes_min:
        raise RemoteProtocolError("a NAT-PMP response is truncated")
    return result, uptime_s

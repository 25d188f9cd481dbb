"""NAT-PMP messages have the layout of RFC 6886, and no datagram raises anything but our error."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.portmap import natpmp
from p2ptrain.portmap.natpmp import (
    AddressResponse,
    MapResponse,
    decode_address,
    decode_map,
    map_request,
)

ADDRESS = bytes.fromhex("00 80 0000 00000400 cb007107")
MAPPED = bytes.fromhex("00 82 0000 00000400 1069 c351 00000e10")


def test_requests_have_the_layout_of_the_rfc() -> None:
    assert natpmp.ADDRESS_REQUEST == b"\x00\x00"
    assert map_request(4201, 50_001, 3600) == bytes.fromhex("00 02 0000 1069 c351 00000e10")


def test_port_is_closed_with_a_lifetime_of_zero() -> None:
    assert map_request(4201, 0, 0) == bytes.fromhex("00 02 0000 1069 0000 00000000")


def test_responses_are_decoded_field_by_field() -> None:
    assert decode_address(ADDRESS) == AddressResponse(0, 1024, IPv4Address("203.0.113.7"))
    assert decode_map(MAPPED) == MapResponse(0, 1024, 4201, 50_001, 3600)


def test_error_response_may_end_after_the_uptime() -> None:
    assert decode_address(bytes.fromhex("00 80 0003 00000400")) == AddressResponse(3, 1024, None)
    assert decode_map(bytes.fromhex("00 82 0002 00000400")) == MapResponse(2, 1024)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAPPED[:-1],
        MAPPED[:7],
        MAPPED + bytes(1100),
        b"\x02" + MAPPED[1:],
        MAPPED[:1] + b"\x02" + MAPPED[2:],
        MAPPED[:1] + b"\x81" + MAPPED[2:],
        ADDRESS,
    ],
    ids="empty truncated header long version request UDP address".split(),
)
def test_message_that_is_no_response_to_ours_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_map(data)


@given(st.binary(max_size=1200))
def test_no_datagram_raises_anything_but_our_error(data: bytes) -> None:
    for decode in (decode_map, decode_address):
        try:
            decode(data)
        except RemoteProtocolError:
            continue

"""PCP messages have the layout of RFC 6887, and no datagram raises anything but our error."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.portmap.pcp import (
    Announcement,
    MapMessage,
    MapResponse,
    announce_request,
    decode_announcement,
    decode_map,
    is_other_version,
)

NONCE = bytes(range(1, 13))

GRANTED = bytes.fromhex(
    "02 81 00 00"  # version 2, response to MAP, reserved, result SUCCESS
    "00000e10 00000400"  # lifetime 3600 s, epoch 1024 s
    "000000000000000000000000"  # reserved
    "0102030405060708090a0b0c"  # nonce
    "06 000000 1069 c351"  # TCP, reserved, internal port 4201, external port 50001
    "00000000000000000000ffff cb007107"  # external address 203.0.113.7
)


def test_ipv4_request_has_the_layout_of_the_rfc() -> None:
    message = MapMessage(IPv4Address("192.168.1.5"), NONCE, 4201, 3600, 50_001)
    assert message.to_bytes() == bytes.fromhex(
        "02 01 0000 00000e10"
        "00000000000000000000ffff c0a80105"
        "0102030405060708090a0b0c"
        "06 000000 1069 c351"
        "00000000000000000000ffff 00000000"
    )


def test_ipv6_pinhole_is_the_same_request_with_an_ipv6_client() -> None:
    message = MapMessage(IPv6Address("2001:db8::5"), NONCE, 4201, 0)
    assert message.to_bytes() == bytes.fromhex(
        "02 01 0000 00000000"
        "20010db8000000000000000000000005"
        "0102030405060708090a0b0c"
        "06 000000 1069 0000"
        "00000000000000000000000000000000"
    )


def test_suggested_address_is_sent_back_to_the_router() -> None:
    message = MapMessage(
        IPv4Address("192.168.1.5"), NONCE, 4201, 3600, 50_001, IPv4Address("203.0.113.7")
    )
    assert message.to_bytes()[44:] == bytes.fromhex("00000000000000000000ffff cb007107")


def test_announce_request_is_a_header_only() -> None:
    assert announce_request(IPv4Address("192.168.1.5")) == bytes.fromhex(
        "02 00 0000 00000000 00000000000000000000ffff c0a80105"
    )


def test_response_is_decoded_field_by_field() -> None:
    address = IPv4Address("203.0.113.7")
    assert decode_map(GRANTED) == MapResponse(0, 3600, 1024, NONCE, 4201, 50_001, address)
    announced = bytes.fromhex("02 80 00 00 00000000 00000400") + bytes(12)
    assert decode_announcement(announced) == Announcement(0, 1024)


def test_options_after_a_response_are_ignored() -> None:
    assert decode_map(GRANTED + bytes(8)) == decode_map(GRANTED)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GRANTED[:-4],
        GRANTED[:-1],
        GRANTED + b"x",
        GRANTED + bytes(1100),
        b"\x00" + GRANTED[1:],
        GRANTED[:1] + b"\x01" + GRANTED[2:],
        GRANTED[:1] + b"\x80" + GRANTED[2:],
        GRANTED[:36] + b"\x11" + GRANTED[37:],
    ],
    ids="empty short odd trailing long version request announce UDP".split(),
)
def test_message_that_is_no_response_to_ours_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_map(data)


def test_router_with_only_natpmp_is_recognised_by_its_version() -> None:
    assert is_other_version(bytes.fromhex("00 81 0001 00000400"))
    assert is_other_version(bytes.fromhex("01 81 00 01 00000000 00000400") + bytes(12))
    assert not is_other_version(GRANTED)
    assert not is_other_version(b"\x00\x81")
    assert not is_other_version(bytes.fromhex("00 01 0001 00000400"))


@given(st.binary(max_size=1200))
def test_no_datagram_raises_anything_but_our_error(data: bytes) -> None:
    is_other_version(data)
    for decode in (decode_map, decode_announcement):
        try:
            decode(data)
        except RemoteProtocolError:
            continue


@given(st.integers(0, 59), st.integers(0, 255))
def test_changed_byte_is_refused_or_changes_only_its_field(place: int, value: int) -> None:
    data = GRANTED[:place] + bytes([value]) + GRANTED[place + 1 :]
    try:
        found = decode_map(data)
    except RemoteProtocolError:
        assert place in (0, 1, 36)
        return
    whole = decode_map(GRANTED)
    fields = ("result", "lifetime_s", "uptime_s", "nonce", "internal_port", "external_port")
    differing = [name for name in fields if getattr(found, name) != getattr(whole, name)]
    assert len(differing) + (found.external_address != whole.external_address) <= 1

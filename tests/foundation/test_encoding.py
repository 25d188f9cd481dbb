"""Each value has exactly one encoding; any other encoding of the value is refused."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import DEPTH_MAX, fields, pack, unpack
from p2ptrain.errors import LocalProtocolError, RemoteProtocolError

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(values)
def test_packed_values_unpack_and_repack_to_the_same_bytes(value: object) -> None:
    data = pack(value)
    assert unpack(data, bytes_max=1 << 20) == value
    assert pack(unpack(data, bytes_max=1 << 20)) == data


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_canonical_or_refused(data: bytes) -> None:
    try:
        value = unpack(data, bytes_max=200)
    except RemoteProtocolError:
        return
    assert pack(value) == data


def test_encoding_does_not_depend_on_the_order_of_a_maps_keys() -> None:
    assert pack({"a": 1, "b": 2}) == pack({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (pack([1, 2]) + b"\x00", "not msgpack"),
        (msgpack.packb({"b": 1, "a": 2}), "canonical"),
        (b"\xcd\x00\x01", "canonical"),  # the number 1 in three bytes
        (msgpack.packb({1: 2}), "not msgpack"),
        (msgpack.packb(msgpack.ExtType(4, b"x")), "canonical"),
        (msgpack.packb(float("nan")), "not a valid value"),
        (b"\x91" * (DEPTH_MAX + 2) + b"\xc0", "not a valid value"),
        (b"\x91" * 100_000 + b"\xc0", "not msgpack"),
        (b"\xdd\xff\xff\xff\xff", "not msgpack"),  # a list that claims to have 4 G items
    ],
)
def test_noncanonical_encoding_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        unpack(data, bytes_max=1 << 20)


def test_oversized_message_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(RemoteProtocolError, match="65 bytes; the maximum is 64"):
        unpack(b"\xc1" * 65, bytes_max=64)


@pytest.mark.parametrize(
    "value", [float("inf"), object(), {1: 2}, {"a": {2: 3}}, 1 << 70, "\ud800"]
)
def test_value_without_an_encoding_raises_local_protocol_error(value: object) -> None:
    with pytest.raises(LocalProtocolError):
        pack(value)


def test_fields_returns_the_map_that_has_exactly_the_expected_fields() -> None:
    assert fields({"a": 1, "b": None}, a=int, b=(str, type(None))) == {"a": 1, "b": None}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([1], "expected a map"),
        ({"a": 1}, "missing or unknown: b"),
        ({"a": 1, "b": 2, "c": 3}, "missing or unknown: c"),
        ({"a": True, "b": 2}, "field a has the wrong type bool"),
        ({"a": 1, "b": "x"}, "field b has the wrong type str"),
    ],
)
def test_fields_says_which_field_is_wrong(value: object, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        fields(value, a=int, b=int)

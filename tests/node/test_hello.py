"""Peers introduce themselves with a hello: a request and its reply. Invalid ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.peers.hello_messages import (
    PEERS_TOLD_MAX,
    REQUEST_BYTES_MAX,
    HelloReply,
    HelloRequest,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from p2ptrain.peers.protocol_names import HELLO_BYTES_MAX
from tests.node.rig import ANN, BOB, somebody

REPLY = HelloReply(
    b"manifest", b"list", b"more", True, {ANN.peer: ("/ip4/127.0.0.1/tcp/1",), BOB.peer: ()}
)


@pytest.mark.parametrize("request_", [HelloRequest("", b""), HelloRequest("a" * 64, b"join")])
def test_request_survives_encoding(request_: HelloRequest) -> None:
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize("reply", [REPLY, HelloReply(b"", b"", b"", False, {})])
def test_reply_survives_encoding(reply: HelloReply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


def test_reply_names_only_as_many_peers_as_a_newcomer_needs() -> None:
    many = {somebody(number).peer: ("/ip4/127.0.0.1/tcp/1",) for number in range(80)}
    told = decode_reply(encode_reply(HelloReply(b"", b"", b"", True, many))).peers
    assert list(told) == sorted(list(many)[:PEERS_TOLD_MAX])


def spoiled(**changes: object) -> bytes:
    """Return the bytes of a reply with these changes, which make it invalid."""
    wire = unpack(encode_reply(REPLY), bytes_max=HELLO_BYTES_MAX)
    assert isinstance(wire, dict)
    return pack(wire | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"manifest": "text"},
        {"allowlist": None},
        {"amendments": "text"},
        {"admitted": 1},
        {"peers": []},
        {"peers": {"nobody": []}},
        {"peers": {ANN.peer: "text"}},
        {"peers": {ANN.peer: [7]}},
        {"peers": {ANN.peer: ["x" * 201]}},
        {"peers": {ANN.peer: ["x"] * 9}},
        {"peers": {somebody(number).peer: [] for number in range(65)}},
        {"surplus": True},
    ],
    ids=lambda changes: str(changes)[:30],
)
def test_reply_with_an_invalid_field_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_reply(spoiled(**changes))


@pytest.mark.parametrize(
    "wire",
    [
        {"run": "a" * 65, "join": b""},
        {"run": b"a", "join": b""},
        {"run": "", "join": ""},
        {"run": ""},
        {"run": "", "join": b"", "more": 1},
        [],
    ],
    ids=str,
)
def test_request_with_an_invalid_field_is_refused(wire: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(pack(wire))


def test_oversized_request_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="the maximum is"):
        decode_request(pack({"run": "", "join": bytes(REQUEST_BYTES_MAX)}))


@given(st.binary(max_size=300))
def test_hello_of_random_bytes_is_refused(noise: bytes) -> None:
    for decode in (decode_request, decode_reply):
        with pytest.raises(RemoteProtocolError):
            decode(noise)

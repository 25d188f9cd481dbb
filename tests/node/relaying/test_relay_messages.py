"""Requests to meet at a relay survive encoding, and malformed ones are refused."""

from __future__ import annotations

import pytest

from p2ptrain.dataplane.relaying import EdgeKey, FetchKey, RelayKey
from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import RunId
from p2ptrain.peers.relay_messages import (
    MEET_BYTES_MAX,
    MeetRequest,
    decode_reply,
    decode_request,
    encode_reply,
)
from tests.node.rig import ANN, BOB

RUN = RunId("a" * 64)
FETCH = FetchKey(RUN, bytes(16), ANN.peer)


@pytest.mark.parametrize("key", [FETCH, EdgeKey(RUN, (1 << 40), (1 << 40), 63, ANN.peer)])
def test_request_survives_encoding(key: RelayKey) -> None:
    request = MeetRequest(BOB.peer, key)
    assert len(request.encode()) <= MEET_BYTES_MAX
    assert decode_request(request.encode()) == request


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        pack({"relay": BOB.peer}),
        pack({"relay": "nobody", "key": FETCH.to_wire()}),
        pack({"relay": BOB.peer, "key": {}}),
        pack({"relay": BOB.peer, "key": FETCH.to_wire(), "more": 1}),
    ],
)
def test_malformed_request_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(data)


def test_reply_says_whether_the_peer_comes() -> None:
    assert decode_reply(encode_reply()) == ""
    assert decode_reply(encode_reply("busy")) == "busy"
    assert decode_reply(pack({"comes": False, "reason": ""})) == "it gave no reason"
    assert decode_reply(pack({"comes": False, "reason": "\x1b[2J"})) == "?[2J"
    with pytest.raises(RemoteProtocolError):
        decode_reply(b"x")

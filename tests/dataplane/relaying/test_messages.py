"""The messages of relays survive encoding, and malformed ones are refused."""

from __future__ import annotations

import pytest

from p2ptrain.dataplane.relaying import (
    EdgeKey,
    FetchKey,
    Refusal,
    Refused,
    RelayRequest,
    key_from_wire,
)
from p2ptrain.dataplane.relaying.messages import (
    ANSWER_BYTES_MAX,
    RelayKey,
    decode_answer,
    encode_answer,
)
from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from tests.dataplane.relaying.conftest import ANN, BOB, CAI, edge_key, fetch_key

EDGE, FETCH = edge_key(3).to_wire(), fetch_key().to_wire()


@pytest.mark.parametrize("key", [edge_key(3), fetch_key()])
def test_request_survives_encoding(key: RelayKey) -> None:
    request = RelayRequest(ANN.peer, BOB.peer, key)
    assert RelayRequest.from_hello(request.to_hello(), ANN.peer) == request


def test_streams_of_an_attempt_are_one_edge_from_both_ends() -> None:
    edges = {
        RelayRequest(peer, other, edge_key(stream)).edge
        for stream in range(4)
        for peer, other in ((ANN.peer, BOB.peer), (BOB.peer, ANN.peer))
    }
    assert len(edges) == 1
    assert RelayRequest(ANN.peer, BOB.peer, edge_key(attempt=7)).edge not in edges
    fetches = {RelayRequest(ANN.peer, BOB.peer, fetch_key(number)).edge for number in (1, 2)}
    assert len(fetches) == 2
    assert {each.is_fetch for each in fetches} == {True}


@pytest.mark.parametrize(
    "wire",
    [
        None,
        {},
        {"kind": "other"},
        EDGE | {"kind": "fetch"},
        EDGE | {"run": "a"},
        EDGE | {"dialler": "12D3"},
        EDGE | {"step": -1},
        EDGE | {"step": True},
        EDGE | {"stream": 64},
        EDGE | {"attempt": 1 << 41},
        EDGE | {"more": 1},
        FETCH | {"nonce": b"short"},
        FETCH | {"nonce": "a" * 16},
    ],
)
def test_malformed_key_is_refused(wire: object) -> None:
    with pytest.raises(RemoteProtocolError):
        key_from_wire(wire)


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"purpose": "relay", "with": BOB.peer},
        {"purpose": "relay", "with": ANN.peer, "key": EDGE},
        {"purpose": "relay", "with": "nobody", "key": EDGE},
        {"purpose": "relay", "with": 4, "key": EDGE},
        {"purpose": "relay", "with": BOB.peer, "key": edge_key(dialler=CAI.peer).to_wire()},
        {"purpose": "relay", "with": BOB.peer, "key": EDGE, "more": 1},
    ],
)
def test_malformed_hello_is_refused(hello: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        RelayRequest.from_hello(hello, ANN.peer)


def test_answer_survives_encoding_and_is_short() -> None:
    assert decode_answer(encode_answer(None)) is None
    long = encode_answer(Refused(Refusal.FULL, "é" * 1000))
    assert len(long) <= ANSWER_BYTES_MAX
    assert decode_answer(long) == Refused(Refusal.FULL, "é" * 100)


def test_answer_of_a_later_version_is_a_refusal() -> None:
    later = pack({"joined": False, "kind": "asleep", "reason": "come \x1b[2Jback"})
    assert decode_answer(later) == Refused(Refusal.OTHER, "come ?[2Jback")


@pytest.mark.parametrize("answer", [b"", b"x", pack({"joined": 1, "kind": "", "reason": ""})])
def test_malformed_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_answer(answer)


def test_keys_are_values() -> None:
    assert isinstance(key_from_wire(EDGE), EdgeKey)
    assert isinstance(key_from_wire(FETCH), FetchKey)
    assert key_from_wire(EDGE) == edge_key(3)

"""Requests and replies about sketches are bounded."""

from __future__ import annotations

import pytest

from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.peers.forwarded_messages import PAYLOAD_BYTES_MAX
from p2ptrain.proofs.claims import CLAIM_BYTES_MAX
from p2ptrain.proofs.sketch_messages import (
    ASKED_MAX,
    CONTENT_BYTES_MAX,
    PLACES_MAX,
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SketchReply,
    SketchRequest,
    decode_reply,
    decode_request,
    reply_of,
)
from p2ptrain.proofs.stated_sketch import STATEMENT_BYTES_MAX
from p2ptrain.store import digest_of

ROSTER = digest_of(b"roster")


def test_longest_messages_are_read_back() -> None:
    everybody = tuple(range(PLACES_MAX - ASKED_MAX, PLACES_MAX))
    shown = bytes(CLAIM_BYTES_MAX), bytes(STATEMENT_BYTES_MAX)
    asked = SketchRequest(ROSTER, everybody, everybody, *shown)
    assert len(asked.encode()) <= REQUEST_BYTES_MAX
    assert REQUEST_BYTES_MAX <= PAYLOAD_BYTES_MAX
    assert decode_request(asked.encode()) == asked
    assert asked.asks
    assert asked.shows
    assert not SketchRequest(ROSTER, (), ()).shows
    told = reply_of([b"claim"] * 8, [bytes(STATEMENT_BYTES_MAX)] * 9)
    assert [len(told.documents), len(told.statements)] == [8, 1]
    assert CONTENT_BYTES_MAX // 2 < len(told.encode()) <= REPLY_BYTES_MAX <= PAYLOAD_BYTES_MAX
    assert decode_reply(told.encode()) == told
    assert decode_reply(SketchReply().encode()) == SketchReply()


@pytest.mark.parametrize(
    "wrong",
    [
        {"documents": [PLACES_MAX]},
        {"documents": [True]},
        {"documents": [-1]},
        {"documents": ["0"]},
        {"documents": [0] * (ASKED_MAX + 1)},
        {"roster": "short"},
        {"roster": None},
        {"document": bytes(CLAIM_BYTES_MAX + 1)},
        {"statement": bytes(STATEMENT_BYTES_MAX + 1)},
        {"statement": "text"},
    ],
)
def test_malformed_request_is_refused(wrong: dict[str, object]) -> None:
    good = {"roster": ROSTER, "documents": [], "statements": [], "document": b"", "statement": b""}
    assert decode_request(pack(good)) == SketchRequest(ROSTER, (), ())
    with pytest.raises(RemoteProtocolError):
        decode_request(pack(good | wrong))
    with pytest.raises(RemoteProtocolError):
        decode_request(pack({"roster": ROSTER, "documents": [], "statements": []}))


@pytest.mark.parametrize(
    "value",
    [
        {"documents": ["text"], "statements": []},
        {"documents": [], "statements": [bytes(STATEMENT_BYTES_MAX + 1)]},
        {"documents": [bytes(2000)], "statements": []},
        {"documents": []},
    ],
)
def test_malformed_reply_is_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_reply(pack(value))

"""Messages about punching survive the wire, and malformed ones are refused."""

from __future__ import annotations

import pytest

from p2ptrain.dataplane.candidates import STREAMS_MAX, ExternalAddress
from p2ptrain.dataplane.punch_messages import (
    ABOUT_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    NONCE_BYTES,
    PunchAnswer,
    PunchGo,
    PunchMessage,
    PunchOffer,
    PunchRefusal,
    decode,
    encode,
)
from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError

NONCE = bytes(range(NONCE_BYTES))
WIDEST = "2001:db8:1111:2222:3333:4444:5555:6666"
MANY = tuple(ExternalAddress(WIDEST, 65535 - number) for number in range(STREAMS_MAX))


@pytest.mark.parametrize(
    "message",
    [
        PunchOffer(NONCE, "a" * ABOUT_BYTES_MAX, 3, MANY),
        PunchAnswer(NONCE, 3, 120, MANY),
        PunchGo(NONCE),
        PunchRefusal(NONCE, "not now"),
    ],
)
def test_message_survives_the_wire(message: PunchMessage) -> None:
    packed = encode(message)
    assert len(packed) <= MESSAGE_BYTES_MAX
    assert decode(packed) == message


def offer(**changed: object) -> dict[str, object]:
    candidates = [{"host": "203.0.113.7", "port": 4202}]
    made: dict[str, object] = {"kind": "offer", "nonce": NONCE, "about": "a stream", "attempt": 0}
    return made | {"candidates": candidates} | changed


@pytest.mark.parametrize(
    "wire",
    [
        [],
        {"kind": "hello"},
        {"kind": ["offer"]},
        {"kind": "go", "nonce": b"short"},
        {"kind": "go", "nonce": NONCE, "more": 1},
        {"kind": "refusal", "nonce": NONCE, "reason": "x" * 201},
        offer(about=""),
        offer(about="é" * 101),
        offer(attempt=16),
        offer(attempt=True),
        offer(candidates=[]),
        offer(candidates=[{"host": "203.0.113.7", "port": 4202}] * (STREAMS_MAX + 1)),
        offer(candidates=[{"host": "203.0.113.7", "port": 22}]),
        offer(candidates=[{"host": "seed.example", "port": 4202}]),
        offer(candidates=["203.0.113.7:4202"]),
        {**offer(kind="answer"), "spent_ms": -1},
    ],
)
def test_malformed_message_is_refused(wire: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(pack(wire))


def test_well_formed_offer_of_these_tests_is_accepted() -> None:
    assert isinstance(decode(pack(offer())), PunchOffer)

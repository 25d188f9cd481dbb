"""Forwarded messages are signed as a whole, and each is handled once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import verify
from p2ptrain.ids import PeerId, RunId
from p2ptrain.peers.forwarded_messages import (
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    WINDOW,
    ForwardedMessage,
    HandledSerials,
    decode,
)
from tests.node.rig import ANN, BOB, CAI

REQUEST = ForwardedMessage(
    RunId("ab" * 32), ANN.peer, BOB.peer, 7 << 32, 9 << 32, 3, "/p/1", is_reply=False, payload=b"x"
).signed(ANN.sign)


def test_message_survives_encoding() -> None:
    assert decode(REQUEST.encode()) == REQUEST
    assert REQUEST.is_genuine(verify)
    longest = replace(REQUEST, payload=bytes(PAYLOAD_BYTES_MAX)).signed(ANN.sign)
    assert decode(longest.encode()) == longest
    assert len(longest.encode()) <= MESSAGE_BYTES_MAX


CHANGES: dict[str, Any] = {
    "run": RunId("cd" * 32),
    "sender": CAI.peer,
    "receiver": CAI.peer,
    "sender_incarnation": 8 << 32,
    "receiver_incarnation": 8 << 32,
    "serial": 4,
    "protocol": "/p/2",
    "is_reply": True,
    "payload": b"y",
}


@pytest.mark.parametrize("name", CHANGES)
def test_signature_covers_every_field(name: str) -> None:
    assert not replace(REQUEST, **{name: CHANGES[name]}).is_genuine(verify)


def test_reply_belongs_to_one_request() -> None:
    reply = REQUEST.reply(b"z").signed(BOB.sign)
    assert reply.is_genuine(verify)
    assert reply.answers(REQUEST)
    assert not reply.answers(replace(REQUEST, serial=4))
    assert not REQUEST.answers(REQUEST)
    assert not replace(REQUEST.reply(b"z"), sender=CAI.peer).signed(CAI.sign).answers(REQUEST)


@pytest.mark.parametrize(
    "change",
    [
        {"run": "short"},
        {"sender": "nobody"},
        {"receiver": ""},
        {"incarnations": [1]},
        {"incarnations": [1, True]},
        {"incarnations": [1, -1]},
        {"serial": -1},
        {"serial": 1 << 41},
        {"protocol": "/p/1\n"},
        {"protocol": "/" * 65},
        {"payload": bytes(PAYLOAD_BYTES_MAX + 1)},
        {"reply": 1},
        {"more": 1},
    ],
)
def test_malformed_messages_are_refused(change: dict[str, object]) -> None:
    wire = unpack(REQUEST.encode(), bytes_max=MESSAGE_BYTES_MAX)
    assert isinstance(wire, dict)
    with pytest.raises(RemoteProtocolError):
        decode(pack({**wire, **change}))


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3 * WINDOW)), max_size=200))
def test_each_serial_is_new_once(arrivals: list[tuple[int, int]]) -> None:
    """A simpler implementation stores every number. Serial numbers far behind the newest one, and
    those of an earlier incarnation, are not new."""
    handled, seen, newest = HandledSerials(), set[int](), (0, -1)
    for incarnation, serial in arrivals:
        if incarnation > newest[0]:
            seen, newest = set(), (incarnation, -1)
        is_new = incarnation == newest[0] and serial > newest[1] - WINDOW and serial not in seen
        assert handled.is_new(ANN.peer, incarnation, serial) == is_new
        if is_new:
            seen.add(serial)
            newest = (incarnation, max(serial, newest[1]))


def test_senders_do_not_share_serials() -> None:
    handled = HandledSerials()
    assert [handled.is_new(PeerId(name), 1, 0) for name in "aba"] == [True, True, False]

"""What is heeded of the control messages that come with gossip: who has which, wants which, and who
is in whose mesh.

libp2p 0.8.1 heeds all of it. It sends a message as often as a frame asks for it, so that a megabyte
of one name asks for gigabytes; it keeps what it is told of topics that nobody follows, and answers
each time; and it dials whom a neighbour names.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from itertools import chain, islice
from typing import Any

from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.utils import safe_bytes_from_hex

IDS_MAX = 512
"""Messages named at once. Of a run of a hundred members one frame names fifty."""
ANSWER_BYTES_MAX = 1 << 20
"""What fits one frame."""

Kept = Callable[[bytes], rpc_pb2.Message | None]
"""A message by its id, while it is kept for those who missed it."""


def bounded(control: rpc_pb2.ControlMessage, topics: Container[str], kept: Kept) -> Any:
    """Of each kind one word for each of our `topics`, and nobody to dial."""
    wanted = _wanted(control.iwant, kept)
    return rpc_pb2.ControlMessage(
        ihave=[
            rpc_pb2.ControlIHave(topicID=told.topicID, messageIDs=told.messageIDs[:IDS_MAX])
            for told in _last_of_each(control.ihave, topics)
        ],
        # libp2p counts even an empty one, and heeds ten a second.
        iwant=[rpc_pb2.ControlIWant(messageIDs=wanted)] if wanted else [],
        graft=_last_of_each(control.graft, topics),
        prune=[
            rpc_pb2.ControlPrune(topicID=told.topicID, backoff=told.backoff)
            for told in _last_of_each(control.prune, topics)
        ],
    )


def _last_of_each(told: Iterable[Any], topics: Container[str]) -> list[Any]:
    return list({each.topicID: each for each in told if each.topicID in topics}.values())


def _wanted(asked: Iterable[rpc_pb2.ControlIWant], kept: Kept) -> list[Any]:
    """Each message once, as many as fit one answer. One name can be written in many ways."""
    wanted: dict[bytes, Any] = {}
    room_bytes = ANSWER_BYTES_MAX
    for name in islice(chain.from_iterable(each.messageIDs for each in asked), IDS_MAX):
        message_id = safe_bytes_from_hex(name)
        message = None if message_id is None else kept(message_id)
        if message is None or message_id is None or message_id in wanted:
            continue
        room_bytes -= message.ByteSize()
        if room_bytes < 0:
            break
        wanted[message_id] = name
    return list(wanted.values())

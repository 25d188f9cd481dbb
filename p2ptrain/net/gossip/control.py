"""The control messages of a gossip frame that we act on: offers of messages (IHAVE), requests for
messages (IWANT), and changes of the mesh (GRAFT, PRUNE).

libp2p 0.8.1 acts on all of them without limits. It sends a message once for each time that a frame
names it, so a one-megabyte frame that repeats one name requests gigabytes. It stores and answers
entries about topics that nobody follows. It dials peers that a neighbour names.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import chain, islice
from typing import Any

from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.utils import safe_bytes_from_hex

IDS_MAX = 512
"""Maximum number of message names in one frame. In a run of a hundred members a frame has about
fifty."""
ENTRIES_MAX = 64
"""Maximum number of entries of one kind that we read. A node sends one for each of its four
topics."""
NAME_BYTES_MAX = 144
"""Maximum bytes of a message name: its author and number (72 bytes, see frames.py), possibly in
hex."""
BACK_OFF_S_MAX = 60
"""Maximum seconds for which a neighbour may ask not to be grafted again. libp2p's default is 60."""
ANSWER_BYTES_MAX = 1 << 20
"""Maximum bytes of one answer, which fit into one frame."""

FindMessage = Callable[[bytes], rpc_pb2.Message | None]
"""Returns the message with an id, or None if that message is not in the cache of messages that
peers can request."""


def bounded(
    control: rpc_pb2.ControlMessage, topics: Container[str], find_message: FindMessage
) -> Any:
    """Return a copy of `control` with at most one entry of each kind for each of our `topics`. It
    does not name peers to dial."""
    wanted = _wanted(control.iwant, find_message)
    return rpc_pb2.ControlMessage(
        ihave=[
            rpc_pb2.ControlIHave(topicID=told.topicID, messageIDs=_names(told.messageIDs))
            for told in _last_of_each(control.ihave, topics)
        ],
        # libp2p counts even an empty IWANT, and accepts ten a second.
        iwant=[rpc_pb2.ControlIWant(messageIDs=wanted)] if wanted else [],
        graft=_last_of_each(control.graft, topics),
        prune=[
            rpc_pb2.ControlPrune(topicID=told.topicID, backoff=min(told.backoff, BACK_OFF_S_MAX))
            for told in _last_of_each(control.prune, topics)
        ],
    )


def _last_of_each(told: Sequence[Any], topics: Container[str]) -> list[Any]:
    some = told[:ENTRIES_MAX]
    return list({each.topicID: each for each in some if each.topicID in topics}.values())


def _names(told: Sequence[Any]) -> list[Any]:
    return [name for name in told[:IDS_MAX] if len(name) <= NAME_BYTES_MAX]


def _wanted(asked: Sequence[rpc_pb2.ControlIWant], find_message: FindMessage) -> list[Any]:
    """Return the name of each requested message once, as many as fit into one answer."""
    wanted: dict[bytes, Any] = {}
    room_bytes = ANSWER_BYTES_MAX
    told = chain.from_iterable(_names(each.messageIDs) for each in asked[:ENTRIES_MAX])
    for name in islice(told, IDS_MAX):
        message_id = safe_bytes_from_hex(name)
        message = None if message_id is None else find_message(message_id)
        if message is None or message_id is None or message_id in wanted:
            continue
        room_bytes -= message.ByteSize()
        if room_bytes < 0:
            break
        wanted[message_id] = name
    return list(wanted.values())

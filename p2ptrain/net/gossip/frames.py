"""Bounds on a gossip frame, checked before anything loops over its repeated fields.

libp2p 0.8.1 loops over all topics of a message, both before and after the signature check: a
message of 0.96 MB with 480,000 topics cost each receiver 1.65 s of CPU. It also starts three tasks
for each subscription. The functions here check lengths first. After these checks, parsing is the
only work that grows with the size of a frame: at most 0.04 s of CPU for 1 MiB.

This module does no I/O, and does not know which peer sent a frame.
"""

from __future__ import annotations

from typing import Any

from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from p2ptrain.identity import is_peer_id

PAYLOAD_BYTES_MAX = 480 << 10
"""Maximum bytes of a payload. libp2p silently loses frames above 1 MiB, and two payloads of this
size fit into one frame. The largest payload in use is a ledger proposal with the promises of 1,024
members."""
AUTHOR_BYTES_MAX = 64
"""Maximum bytes of an author's peer id. An Ed25519 peer id has 38 bytes. Converting an id of a
megabyte to base58 takes a quarter of an hour."""
SEQNO_BYTES_MAX = 8
"""Maximum bytes of a sequence number. libp2p keeps it for two minutes, as part of a message's
id."""
ENVELOPE_BYTES_MAX = 512
"""Maximum bytes of a message without its payload. Ours have about 260 bytes: the topic (87), the
author, its key, the sequence number and the signature. The bound covers unknown fields as well."""
TOPIC_BYTES_MAX = 128
SUBSCRIPTIONS_MAX = 32
"""Maximum number of subscriptions in one frame. A node follows four topics, and sends all four when
it connects."""


def is_ordinary(message: rpc_pb2.Message) -> bool:
    """Return whether `message` has the form that all our nodes publish: one topic, an Ed25519
    author and little else besides its payload. Cheap checks come first."""
    return (
        len(message.topicIDs) == 1
        and len(message.from_id) <= AUTHOR_BYTES_MAX
        and len(message.seqno) <= SEQNO_BYTES_MAX
        and len(message.data) <= PAYLOAD_BYTES_MAX
        and message.ByteSize() - len(message.data) <= ENVELOPE_BYTES_MAX
        and is_peer_id(str(ID(message.from_id)))
    )


def subscriptions_of(rpc: Any) -> list[Any]:
    """Return the last subscription in `rpc` for each topic; none if the frame has too many.

    Only the last one counts: otherwise a frame that alternately subscribes and unsubscribes would
    make us resend recent messages each time.
    """
    if len(rpc.subscriptions) > SUBSCRIPTIONS_MAX:
        return []
    told = {each.topicid: each for each in rpc.subscriptions}
    return [each for topic, each in told.items() if len(topic) <= TOPIC_BYTES_MAX]

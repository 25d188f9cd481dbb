"""Lies in answer to a victim's questions: what any host may register as a handler.

A stranger that is merely connected is asked whatever a node asks its neighbours. Each of these
answers in its own way, and always to its own advantage.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID
from libp2p.utils.varint import encode_uvarint, encode_varint_prefixed
from multiaddr import Multiaddr

from p2ptrain.node import topics
from p2ptrain.node.identity_messages import (
    NONCE_BYTES,
    SIGNATURE_BYTES,
    Proof,
    Question,
    Reply,
    decode_question,
    encode_question,
    encode_reply,
)
from p2ptrain.node.incarnations import INCARNATION_MAX, Mark
from tests.siege.ground import Ground, Tally, pause

OK = 0
LENGTH = struct.Struct(">I")
KAD = "/ipfs/kad/1.0.0"
QUESTION_BYTES_MAX = 1 << 20

HOLD_S = 600.0
"""A silent answer lasts longer than anybody waits."""

Answer = Callable[[INetStream], Awaitable[None]]


def protocols() -> list[str]:
    """All that nodes ask each other by request and reply, whatever its version now."""
    named = [getattr(topics, name) for name in dir(topics) if name.endswith("_PROTOCOL")]
    return sorted(name for name in named if name != topics.IDENTITY_PROTOCOL)


async def read_exactly(stream: INetStream, count: int) -> bytes:
    found = b""
    while len(found) < count:
        found += await stream.read(count - len(found))
    return found


async def question(stream: INetStream) -> bytes:
    (length,) = LENGTH.unpack(await read_exactly(stream, LENGTH.size))
    return await read_exactly(stream, min(length, QUESTION_BYTES_MAX))


def reply(payload: bytes, status: int = OK) -> bytes:
    return LENGTH.pack(1 + len(payload)) + bytes([status]) + payload


# to "is there another process with my identity?"


def duplicates(tally: Tally) -> Answer:
    """The lie that there is one: challenges that nobody made, and a proof with a forged signature,
    over the nonce that was asked.
    """

    async def answer(stream: INetStream) -> None:
        while True:
            asked = decode_question(await question(stream))
            forged = Proof(asked.nonce, 0, False, os.urandom(SIGNATURE_BYTES))
            mark = Mark(INCARNATION_MAX, os.urandom(SIGNATURE_BYTES))
            told = Reply(True, (os.urandom(NONCE_BYTES),), (forged,), mark)
            await stream.write(reply(encode_reply(told)))
            tally.did("lie about duplicates")

    return answer


def invented_question() -> bytes:
    """A question with an incarnation that nobody took: each is to be remembered."""
    incarnation = random.randrange(INCARNATION_MAX)
    return encode_question(Question(os.urandom(NONCE_BYTES), incarnation, starting=False))


# to every other question


def silence(tally: Tally) -> Answer:
    async def answer(stream: INetStream) -> None:
        await question(stream)
        tally.did("silent answers")
        await pause(HOLD_S)

    return answer


def rubbish(tally: Tally) -> Answer:
    async def answer(stream: INetStream) -> None:
        while True:
            await question(stream)
            await stream.write(reply(os.urandom(300)))
            tally.did("rubbish answers")

    return answer


def nothing_but_bytes(tally: Tally) -> Answer:
    """A well-formed frame, and then one byte each second."""

    async def answer(stream: INetStream) -> None:
        await question(stream)
        tally.did("answers byte by byte")
        await stream.write(LENGTH.pack(60_000) + bytes([OK]))
        while True:
            await stream.write(b"\xa0")
            await pause(1.0)

    return answer


def endless(tally: Tally) -> Answer:
    """Announces four gigabytes."""

    async def answer(stream: INetStream) -> None:
        await question(stream)
        tally.did("oversized answers")
        await stream.write(b"\xff" * 4 + bytes(10_000))

    return answer


def refusal(tally: Tally) -> Answer:
    """Every other status, with a long reason that holds control characters."""

    async def answer(stream: INetStream) -> None:
        status = 0
        while True:
            await question(stream)
            status += 1
            await stream.write(reply(b"\x1b[2J\n" * 60, status % 256))
            tally.did("refusals")

    return answer


LIES = (silence, rubbish, nothing_but_bytes, endless, refusal)


def register(host: IHost, tally: Tally, number: int) -> None:
    """Have `host` lie in answer to everything: about duplicates, and to each other question in the
    way that its number says.
    """
    host.set_stream_handler(TProtocol(topics.IDENTITY_PROTOCOL), quiet(duplicates(tally)))
    for index, protocol in enumerate(protocols()):
        lie = LIES[(number + index) % len(LIES)]
        host.set_stream_handler(TProtocol(protocol), quiet(lie(tally)))


def quiet(answer: Answer) -> Any:
    async def handler(stream: INetStream) -> None:
        try:
            await answer(stream)
        except trio.Cancelled:
            raise
        except Exception:
            return  # The victim has hung up, as it should.

    return handler


# to the DHT's questions


def false_records(ground: Ground, tally: Tally) -> Answer:
    """Every node of the run is at an address where nobody is, or at a name that never resolves."""
    infos = []
    for number, victim in enumerate(ground.victims):
        peer = Message.Peer(id=ID.from_base58(victim.peer).to_bytes(), connection=1)
        peer.addrs.extend(
            Multiaddr(text).to_bytes()
            for text in (
                f"/ip4/127.0.2.{1 + number}/tcp/9",
                f"/dns4/n{number}.nowhere.invalid/tcp/4001",
                f"/dns4/{'x' * 60}.slow.invalid/tcp/4001",
            )
        )
        infos.append(peer)

    async def answer(stream: INetStream) -> None:
        length, shift = 0, 0
        while True:
            (byte,) = await read_exactly(stream, 1)
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        asked = Message.FromString(await read_exactly(stream, min(length, QUESTION_BYTES_MAX)))
        told = Message(type=asked.type, key=asked.key)
        told.closerPeers.extend(infos)
        told.providerPeers.extend(infos)
        await stream.write(bytes(encode_varint_prefixed(told.SerializeToString())))
        tally.did("false addresses in the DHT")

    return answer


def register_dht(host: IHost, ground: Ground, tally: Tally) -> None:
    host.set_stream_handler(TProtocol(KAD), quiet(false_records(ground, tally)))


def provider_record(ground: Ground, key: bytes, victim: int) -> bytes:
    """An ADD_PROVIDER that names an honest node at a false address."""
    message = Message(type=Message.ADD_PROVIDER, key=key)
    told = message.providerPeers.add(id=ID.from_base58(ground.victims[victim].peer).to_bytes())
    told.addrs.append(Multiaddr("/dns4/nowhere.invalid/tcp/4001").to_bytes())
    return encode_uvarint(len(message.SerializeToString())) + message.SerializeToString()

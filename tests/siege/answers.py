"""Handlers that answer a victim's requests with lies. Any host can register them.

A connected stranger gets the same requests as every neighbour of a node. Each handler gives a
different kind of harmful answer.
"""

from __future__ import annotations

import os
import random
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID
from libp2p.utils.varint import encode_uvarint, encode_varint_prefixed
from multiaddr import Multiaddr

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import P2PTrainError
from p2ptrain.peers import protocol_names
from p2ptrain.peers.incarnations import INCARNATION_MAX
from tests.siege.ground import Ground, Tally, pause

IDENTITY = protocol_names.IDENTITY_PROTOCOL
"""The protocol by which a node asks whether another process has its identity."""

OK = 0
LENGTH = struct.Struct(">I")
KAD = "/ipfs/kad/1.0.0"
QUESTION_BYTES_MAX = 1 << 20

HOLD_S = 600.0
"""Seconds that a silent handler holds the stream. No node waits that long."""

Answer = Callable[[INetStream], Awaitable[None]]


def protocols() -> list[str]:
    """Return all request protocols of nodes in their current versions, except IDENTITY."""
    named = [
        getattr(protocol_names, name) for name in dir(protocol_names) if name.endswith("_PROTOCOL")
    ]
    return sorted(name for name in named if name != IDENTITY)


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


# answers to "is there another process with my identity?"


def duplicates(tally: Tally) -> Answer:
    """Answer that another process uses the asker's identity.

    The liar does not have the asker's key. So it sends the asker's nonce back for the asker to
    sign, replays the proofs that the asker sends, and adds forged proofs.
    """
    times, signed = 0, deque[object](maxlen=4)

    async def answer(stream: INetStream) -> None:
        nonlocal times
        while True:
            asked = await question(stream)
            times += 1
            with suppress(P2PTrainError):
                await stream.write(
                    reply(_false_reply(unpack(asked, bytes_max=4096), signed, times))
                )
            tally.did("lies about identities")

    return answer


def _false_reply(asked: Any, signed: deque[object], times: int) -> bytes:
    signed.extend(asked["proofs"])
    forged = [
        [asked["nonce"], asked["incarnation"] + ahead, False, os.urandom(64)] for ahead in (-1, 1)
    ]
    return pack(
        {
            "suspected": True,
            "challenges": [asked["nonce"], *(os.urandom(16) for _ in range(7))],
            "proofs": [*forged, *signed],
            "mark": [INCARNATION_MAX, os.urandom(64)] if times % 2 else None,
        }
    )


def identity_question(starting: bool = False) -> bytes:
    """Return a question of a process whose incarnation (the number of one process) no peer has seen
    before, with proofs that nobody requested."""
    incarnation, nonce = random.getrandbits(48), os.urandom(16)
    proofs = [[os.urandom(16), incarnation, False, os.urandom(64)] for _ in range(8)]
    told = {"nonce": nonce, "incarnation": incarnation, "starting": starting, "proofs": proofs}
    return pack(told)


# answers to all other questions


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
    """Send a well-formed frame, and then one byte each second."""

    async def answer(stream: INetStream) -> None:
        await question(stream)
        tally.did("answers byte by byte")
        await stream.write(LENGTH.pack(60_000) + bytes([OK]))
        while True:
            await stream.write(b"\xa0")
            await pause(1.0)

    return answer


def endless(tally: Tally) -> Answer:
    """Announce an answer of four gigabytes."""

    async def answer(stream: INetStream) -> None:
        await question(stream)
        tally.did("oversized answers")
        await stream.write(b"\xff" * 4 + bytes(10_000))

    return answer


def refusal(tally: Tally) -> Answer:
    """Send all status codes in turn, each with a long reason that contains control characters."""

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
    """Let `host` answer all requests with lies. `number` determines the kind of lie for each
    protocol.
    """
    host.set_stream_handler(TProtocol(IDENTITY), quiet(duplicates(tally)))
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
            return  # The victim has disconnected, as it should.

    return handler


# answers to requests of the DHT


def false_records(ground: Ground, tally: Tally) -> Answer:
    """Answer that every node of the run is at a dead address, or at a name that never resolves."""
    infos = []
    for number, victim in enumerate(ground.victims):
        peer = Message.Peer(id=ID.from_base58(victim.peer).to_bytes(), connection=Message.CONNECTED)
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
    """Return an ADD_PROVIDER message that gives a false address for an honest node."""
    message = Message(type=Message.ADD_PROVIDER, key=key)
    told = message.providerPeers.add(id=ID.from_base58(ground.victims[victim].peer).to_bytes())
    told.addrs.append(Multiaddr("/dns4/nowhere.invalid/tcp/4001").to_bytes())
    body = message.SerializeToString()
    return bytes(encode_uvarint(len(body)) + body)

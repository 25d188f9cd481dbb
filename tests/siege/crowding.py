"""Attacks by strangers over libp2p. False answers to a node's own requests are in `answers`.

Each function is one attack by all strangers and loops for ever. Each call of `crowd.somebody()`
returns a random stranger and one of its victims.
"""

from __future__ import annotations

import os
import random
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.peer.envelope import seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    TYPE_DATA,
    TYPE_PING,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
)
from libp2p.utils.varint import encode_varint_prefixed
from multiaddr import Multiaddr

from p2ptrain.encoding import pack
from p2ptrain.ids import PeerId, RunId
from p2ptrain.ledger.messages.messages import EntriesRequest, Prepare, Promise
from p2ptrain.ledger.messages.wire import encode as encode_ledger
from p2ptrain.peers import protocol_names
from p2ptrain.run import JoinRequest
from tests.siege import answers, gossip_frames, small_order
from tests.siege.ground import Ground, Tally, Victim, pause
from tests.siege.hosts import Stranger

MESHSUB = "/meshsub/1.1.0"
PUSH = "/ipfs/id/push/1.0.0"
STREAM_S = 5.0


@dataclass
class Crowd:
    """All strangers, and their victims."""

    ground: Ground
    tally: Tally
    strangers: list[Stranger]

    def somebody(self) -> tuple[Stranger, Victim]:
        stranger = random.choice(self.strangers)
        return stranger, random.choice(stranger.victims)

    async def say(self, protocol: str, words: bytes, *, read: bool = True) -> bool:
        """Open a stream and send data on it. Return whether the victim accepted it."""
        stranger, victim = self.somebody()
        stream = await stranger.open(victim, protocol)
        try:
            with trio.move_on_after(STREAM_S):
                await stream.write(words)
                if read:
                    await stream.read(1 << 16)
                return True
        except Exception:
            return False
        finally:
            with (
                trio.CancelScope(shield=True, deadline=trio.current_time() + 1),
                suppress(Exception),
            ):
                await stream.reset()
        return False

    async def ask(self, protocol: str, payload: bytes) -> bool:
        return await self.say(protocol, struct.pack(">I", len(payload)) + payload)


async def sybil_joins(crowd: Crowd) -> None:
    """Send hellos with join requests of all strangers, each with a different note."""
    run = RunId(crowd.ground.run)
    while True:
        stranger = random.choice(crowd.strangers)
        request = JoinRequest(run, stranger.identity.peer, int(time.time()), os.urandom(20).hex())
        hello = {"run": run, "join": request.to_bytes(stranger.identity)}
        await _ask_as(crowd, stranger, protocol_names.HELLO_PROTOCOL, pack(hello))
        crowd.tally.did("Sybil join requests")
        await pause(0.1)


async def joins_for_others(crowd: Crowd) -> None:
    """Send join requests for keys of small order. Anybody can sign for such a key."""
    while True:
        for key in small_order.KEYS:
            hello = {
                "run": crowd.ground.run,
                "join": small_order.join_request(crowd.ground.run, key),
            }
            await crowd.ask(protocol_names.HELLO_PROTOCOL, pack(hello))
            crowd.tally.did("small-order keys")
        await pause(1.0)


async def hellos(crowd: Crowd) -> None:
    """Request the manifest again and again with small requests, and do not read the answers."""
    payload = pack({"run": "", "join": b""})
    words = struct.pack(">I", len(payload)) + payload
    while True:
        await crowd.say(protocol_names.HELLO_PROTOCOL, words * 20, read=False)
        crowd.tally.did("slow reads", 20)
        await pause(0.3)


async def questions(crowd: Crowd) -> None:
    """Send rubbish on every protocol: random bytes, empty requests and very long ones."""
    while True:
        for protocol in (*answers.protocols(), answers.IDENTITY):
            for payload in (os.urandom(200), b"", b"\xff" * 60_000, pack({"run": "x" * 900})):
                await crowd.ask(protocol, payload)
                crowd.tally.did("rubbish questions")
                await pause(0.05)


async def oversized_questions(crowd: Crowd) -> None:
    """Announce a length that no node accepts, and send fewer bytes than announced."""
    while True:
        for protocol in answers.protocols():
            await crowd.say(protocol, b"\xff" * 4 + bytes(1000))
            await crowd.say(protocol, struct.pack(">I", 60_000) + bytes(10), read=False)
            crowd.tally.did("oversized and truncated frames", 2)
            await pause(0.2)


async def ledger_words(crowd: Crowd) -> None:
    """Send ledger messages as a stranger."""
    while True:
        for height in (0, 1, 5, 1 << 40):
            for message in (
                Prepare(height, 1 << 20),
                Promise(height, 1, None, bytes(64)),
                EntriesRequest(height),
            ):
                await crowd.ask(protocol_names.LEDGER_PROTOCOL, encode_ledger(message))
                crowd.tally.did("ledger messages of non-members")
                await pause(0.05)


async def checkpoints(crowd: Crowd) -> None:
    """Alternate between requests for two checkpoints, as a stranger."""
    while True:
        for height in (1, 2):
            await crowd.ask(
                protocol_names.BASE_PROTOCOL, pack({"height": height, "digest": "ab" * 32})
            )
            crowd.tally.did("BASE requests of strangers")
        await pause(0.3)


async def gossip(crowd: Crowd) -> None:
    """Send expensive frames of every kind (see `gossip_frames`) on gossip streams."""
    topic = protocol_names.heartbeat_topic(RunId(crowd.ground.run))
    author = ID.from_base58(crowd.strangers[0].identity.peer).to_bytes()
    frames = gossip_frames.frames(topic, author)
    while True:
        for name in frames:
            await crowd.say(MESHSUB, frames[name], read=False)
            crowd.tally.did("gossip frames of strangers")
            await pause(0.3)


async def pushes(crowd: Crowd) -> None:
    """Push identify messages with thousands of addresses in a valid, current record."""
    while True:
        stranger, _ = crowd.somebody()
        addresses = [Multiaddr(f"/ip4/10.0.{n >> 8}.{n & 255}/tcp/1") for n in range(3000)]
        record = PeerRecord(stranger.host.get_id(), addresses, seq=time.time_ns())
        envelope = seal_record(record, stranger.host.get_private_key()).marshal_envelope()
        said = Identify(
            listen_addrs=[
                Multiaddr(f"/dns4/n{n}.slow.invalid/tcp/1").to_bytes() for n in range(64)
            ],
            protocols=[f"/{n}" for n in range(1000)],
            signedPeerRecord=envelope,
        )
        await crowd.say(PUSH, encode_varint_prefixed(said.SerializeToString()))
        crowd.tally.did("oversized identify pushes")
        await pause(2.0)


async def dht_words(crowd: Crowd) -> None:
    """Send false provider records for other peers to the victim's DHT."""
    key = protocol_names.provider_key(RunId(crowd.ground.run)).encode()
    while True:
        for number in range(len(crowd.ground.victims)):
            record = answers.provider_record(crowd.ground, key, number)
            await crowd.say(answers.KAD, record)
            crowd.tally.did("false provider records")
        await pause(0.5)


def _header(kind: int, flags: int, stream: int, length: int) -> bytes:
    return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, stream, length)


async def yamux_floods(crowd: Crowd) -> None:
    """Send floods of new streams, data beyond the window, pings, and frames of unknown kinds."""
    data = bytes(60_000)
    floods = (
        [_header(TYPE_WINDOW_UPDATE, FLAG_SYN, 100_001 + 2 * n, 0) for n in range(2000)],
        [_header(TYPE_DATA, FLAG_SYN, 200_001 + 2 * n, len(data)) + data for n in range(30)],
        [_header(TYPE_PING, FLAG_SYN, 0, n) for n in range(2000)],
        [_header(TYPE_WINDOW_UPDATE, 0, 1, 0xFFFFFFFF)] * 100,
        [_header(77, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)],
    )
    while True:
        for frames in floods:
            stranger, victim = crowd.somebody()
            await _raw_frames(stranger, victim, frames)
            crowd.tally.did("yamux floods", len(frames))
            await pause(1.0)


async def _raw_frames(stranger: Stranger, victim: Victim, frames: list[bytes]) -> None:
    if not stranger.is_connected(victim):
        await stranger.connect(victim)
    (connection, *_) = stranger.host.get_network().get_connections(ID.from_base58(victim.peer))
    muxed: Any = connection.muxed_conn
    with suppress(Exception):
        for frame in frames:
            await muxed.secured_conn.write(frame)


async def namesake_questions(crowd: Crowd) -> None:
    """Ask the victim whether another process uses our identity. Each question claims to come from a
    new process. A careless victim would remember all these processes.
    """
    while True:
        await crowd.ask(answers.IDENTITY, answers.identity_question())
        crowd.tally.did("invented incarnations of strangers")
        await pause(0.2)


async def _ask_as(crowd: Crowd, stranger: Stranger, protocol: str, payload: bytes) -> None:
    alone = replace(crowd, strangers=[stranger])
    await alone.ask(protocol, payload)


def peers(crowd: Crowd) -> list[PeerId]:
    return [stranger.identity.peer for stranger in crowd.strangers]


ATTACKS = (
    sybil_joins,
    joins_for_others,
    hellos,
    questions,
    oversized_questions,
    ledger_words,
    checkpoints,
    gossip,
    pushes,
    dht_words,
    yamux_floods,
    namesake_questions,
)
COUNTED = (
    "Sybil join requests",
    "small-order keys",
    "slow reads",
    "rubbish questions",
    "oversized and truncated frames",
    "ledger messages of non-members",
    "BASE requests of strangers",
    "gossip frames of strangers",
    "oversized identify pushes",
    "false provider records",
    "yamux floods",
    "invented incarnations of strangers",
)

"""Attacks that only a member can make, since nodes accept gossip and requests of members.

Each function is one attack and loops for ever. It uses the parts of a real node that takes part in
the run at the same time.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import trio
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from p2ptrain.dataplane import dial
from p2ptrain.encoding import pack
from p2ptrain.errors import P2PTrainError
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Vote
from p2ptrain.ledger.messages.messages import (
    Accept,
    EntriesRequest,
    Message,
    Outcome,
    Prepare,
    Promise,
)
from p2ptrain.ledger.messages.wire import encode as encode_ledger
from p2ptrain.node.state.context import Context
from p2ptrain.peers import protocol_names
from p2ptrain.run import JoinRequest
from p2ptrain.swarm import wire as swarm_wire
from tests.siege import answers, gossip_frames
from tests.siege.ground import Ground, Tally, pause

MESHSUB = "/meshsub/1.1.0"
ASK_S = 10.0
KEPT_PER_AUTHOR = 3000
"""Number of heartbeats of each author that are kept for replay. It is enough for ten minutes."""

OLD_S = 15.0
"""Minimum age in seconds of a replayed heartbeat. Its author may have been restarted since then."""

HOLD_S = 15.0
THREADS = 8

REQUESTS = 500
"""Number of requests for chunks on one connection. With four times as many, they used up most of
the attackers' processor time, and on a slow machine other attacks did not happen.
"""


@dataclass
class Member:
    """The lying member, while its node runs."""

    ground: Ground
    tally: Tally
    context: Context
    heard: dict[PeerId, deque[tuple[float, bytes]]] = field(
        default_factory=lambda: defaultdict(partial(deque, maxlen=KEPT_PER_AUTHOR))
    )
    limit: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(THREADS))

    @property
    def host(self) -> Any:
        return self.context.network._host

    @property
    def pubsub(self) -> Any:
        return self.context.network._gossip.pubsub

    @property
    def topic(self) -> str:
        return protocol_names.heartbeat_topic(self.context.run)

    def victims(self) -> list[PeerId]:
        return [victim.peer for victim in self.ground.victims]

    async def ask(self, peer: PeerId, protocol: str, payload: bytes) -> bytes | None:
        with suppress(P2PTrainError):
            return await self.context.network.request(peer, protocol, payload, deadline_s=ASK_S)
        return None

    async def write(self, peer: PeerId, frame: bytes) -> None:
        """Write arbitrary bytes to the gossip stream that `peer` reads."""
        stream = self.pubsub.peers.get(ID.from_base58(peer))
        if stream is not None:
            with suppress(Exception):
                await stream.write(frame)


def lie_in_answers(member: Member) -> None:
    """From now on, answer requests about duplicate identities and requests of the DHT with lies."""
    answers.register_dht(member.host, member.ground, member.tally)
    name = TProtocol(answers.IDENTITY)
    member.host.set_stream_handler(name, answers.quiet(answers.duplicates(member.tally)))


def remember(member: Member) -> None:
    """From now on, store all received heartbeats for replay."""
    real = member.pubsub.push_msg

    async def push_msg(forwarder: ID, message: Any) -> None:
        if member.topic in message.topicIDs:
            author = PeerId(str(ID(message.from_id)))
            member.heard[author].append((trio.current_time(), message.SerializeToString()))
        await real(forwarder, message)

    member.pubsub.push_msg = push_msg


async def replays(member: Member) -> None:
    """Replay old heartbeats to all victims in their original order, again and again."""
    while True:
        for author in list(member.heard):
            old = trio.current_time() - OLD_S
            kept = [wire for at_s, wire in member.heard[author] if at_s < old]
            for wire in kept[:: max(1, len(kept) // 40)]:
                frame = gossip_frames.framed(
                    rpc_pb2.RPC(publish=[rpc_pb2.Message.FromString(wire)])
                )
                for peer in member.victims():
                    if peer != author:
                        await member.write(peer, frame)
                        member.tally.did("replayed heartbeats")
                await pause(0.05)
        await pause(0.5)


async def gossip_bombs(member: Member) -> None:
    """Send validly signed messages with 480,000 topics, and for every repeated field a frame that
    it fills.
    """
    author = ID.from_base58(member.context.me).to_bytes()
    frames = await trio.to_thread.run_sync(gossip_frames.frames, member.topic, author)
    while True:
        for name, frame in frames.items():
            bomb = gossip_frames.signed_topics(member.topic, member.context.identity)
            await member.write(random.choice(member.victims()), bomb)
            member.tally.did("frames of 480,000 topics")
            await pause(1.0)
            peer = random.choice(member.victims())
            if name in {kind.__name__ for kind in gossip_frames.LAST}:
                await _on_a_stream_of_its_own(member, peer, frame)
            else:
                await member.write(peer, frame)
            member.tally.did("worst frames of a field")
            await pause(1.0)


async def _on_a_stream_of_its_own(member: Member, peer: PeerId, frame: bytes) -> None:
    with suppress(Exception), trio.move_on_after(ASK_S):
        stream = await member.host.new_stream(ID.from_base58(peer), [TProtocol(MESHSUB)])
        await stream.write(frame)
        await pause(1.0)
        await stream.reset()


async def gossip_floods(member: Member) -> None:
    """Publish rubbish as a member, more of it than a node checks."""
    ledger = protocol_names.ledger_topic(member.context.run)
    while True:
        for topic in (member.topic, ledger):
            for payload in (os.urandom(200), b"\x9f" * 8000, pack({"base": 1}), b""):
                with suppress(P2PTrainError):
                    await member.context.network.publish(topic, payload)
                member.tally.did("rubbish gossip")
        await pause(0.4)


async def alternating_checkpoints(member: Member) -> None:
    while True:
        chain = member.context.ledger.core.chain
        entries = [each.entry for each in (chain[len(chain) // 3], chain[2 * len(chain) // 3])]
        for peer in member.victims():
            for entry in entries:
                payload = pack({"height": entry.height, "digest": entry.digest})
                await member.ask(peer, protocol_names.BASE_PROTOCOL, payload)
                member.tally.did("alternating checkpoints")
        await pause(0.1)


async def invented_incarnations(member: Member) -> None:
    while True:
        for peer in member.victims():
            await member.ask(peer, answers.IDENTITY, answers.identity_question())
            member.tally.did("invented incarnations")
        await pause(0.2)


async def identity_notices(member: Member) -> None:
    """Gossip unsigned challenges and proofs about every honest node."""
    topic = protocol_names.identity_topic(member.context.run)
    while True:
        for peer in member.victims():
            nonce = os.urandom(16)
            for proof in (None, [nonce, random.getrandbits(40), False, os.urandom(64)]):
                payload = pack({"peer": peer, "nonce": nonce, "proof": proof})
                with suppress(P2PTrainError):
                    await member.context.network.publish(topic, payload)
                member.tally.did("forged notices of identities")
            await pause(0.2)


async def forged_votes(member: Member) -> None:
    """Send consensus messages with forged signatures of other voters."""
    while True:
        state = member.context.ledger.snapshot
        newest, next_height = member.context.ledger.core.chain[-1], state.height + 1
        others = [peer for peer in state.voters if peer != member.context.me]
        digest = Digest(os.urandom(32).hex())
        stolen = tuple((voter, os.urandom(64)) for voter in sorted(state.voters))
        certificate = replace(newest.certificate, votes=stolen)
        messages: list[Message] = [
            Accept(Vote(state.line, next_height, 0, digest, voter, os.urandom(64)))
            for voter in others
        ]
        messages += [Promise(next_height, 1, None, os.urandom(64))]
        messages += [Outcome(replace(newest, certificate=certificate))]
        messages += [Prepare(next_height + 5, 7), Prepare(1, 1), EntriesRequest(0)]
        for message in messages:
            for peer in member.victims():
                await member.ask(peer, protocol_names.LEDGER_PROTOCOL, encode_ledger(message))
                member.tally.did("forged ledger messages")
        await pause(0.5)


async def high_rounds(member: Member) -> None:
    """Request promises for ever higher rounds, so that proposals in lower rounds are refused."""
    round = 1
    while True:
        state = member.context.ledger.snapshot
        for peer in member.victims():
            message = encode_ledger(Prepare(state.height + 1, round))
            await member.ask(peer, protocol_names.LEDGER_PROTOCOL, message)
            member.tally.did("rounds out of turn")
        round = round * 2 % (1 << 20) + 1
        await pause(0.3)


async def false_endpoints(member: Member) -> None:
    """Send endpoints with loopback addresses, other nodes' ports, a rubbish certificate, or another
    peer's id.
    """
    real = member.context.plane.endpoint.to_wire()
    while True:
        for changes in (
            {"host": "127.0.0.1", "port": 22},
            {"host": "127.0.0.1", "port": random.choice(member.ground.victims).port},
            {"host": "::1", "port": 1},
            {"certificate": os.urandom(1500)},
            {"peer": member.victims()[0]},
            {},
        ):
            for peer in member.victims():
                await member.ask(peer, protocol_names.ENDPOINT_PROTOCOL, pack({**real, **changes}))
                member.tally.did("false endpoints")
            await pause(0.5)


async def invented_joins(member: Member) -> None:
    """Forward join requests of peers that do not exist."""
    run = member.context.run
    while True:
        invented = Identity.from_seed(os.urandom(32))
        request = JoinRequest(run, invented.peer, 1, "x").to_bytes(invented)
        for peer in member.victims():
            await member.ask(
                peer, protocol_names.HELLO_PROTOCOL, pack({"run": run, "join": request})
            )
            member.tally.did("requests of invented peers")
        await pause(0.3)


async def donation_requests(member: Member) -> None:
    while True:
        for peer in member.victims():
            await member.ask(peer, protocol_names.INNER_PROTOCOL, pack({"run": member.context.run}))
            member.tally.did("requests for optimizer states")
        await pause(0.3)


async def provider_records(member: Member) -> None:
    """Send false provider records under more keys than a node keeps, including the run's own
    key.
    """
    own = protocol_names.provider_key(member.context.run).encode()
    while True:
        for number in range(40):
            key = own if number == 0 else os.urandom(34)
            record = answers.provider_record(member.ground, key, number % len(member.victims()))
            peer = ID.from_base58(random.choice(member.victims()))
            with suppress(Exception), trio.move_on_after(ASK_S):
                stream = await member.host.new_stream(peer, [TProtocol(answers.KAD)])
                await stream.write(record)
                await stream.read(1)
                await stream.reset()
            member.tally.did("provider records of a member")
            await pause(0.1)


# attacks on the data plane by an admitted peer


async def chunk_requests(member: Member) -> None:
    """Request thousands of digests that do not exist, and the largest chunk again and again without
    reading it.
    """
    largest = await trio.to_thread.run_sync(_largest_chunk, member)
    async with trio.open_nursery() as nursery:
        while True:
            for wanted in (None, largest):
                peer = random.choice(member.victims())
                ask = partial(_ask_for_chunks, member, peer, wanted)
                nursery.start_soon(partial(trio.to_thread.run_sync, limiter=member.limit), ask)
            await pause(1.0)


def _largest_chunk(member: Member) -> Digest:
    files = [path for path in member.context.home.store.rglob("*") if path.is_file()]
    named = [path for path in files if len(path.parent.name + path.name) == 64]
    largest = max(named, key=lambda path: path.stat().st_size)
    return Digest(largest.parent.name + largest.name)


def _ask_for_chunks(member: Member, peer: PeerId, wanted: Digest | None) -> None:
    endpoint = member.context.peers.table.endpoint(peer)
    if endpoint is None:
        return
    hello = {"purpose": swarm_wire.PURPOSE}
    with suppress(P2PTrainError, OSError):
        sock = dial(member.context.plane.credentials, endpoint, hello, deadline_s=ASK_S)
        try:
            sock.set_deadline(HOLD_S)
            for _ in range(REQUESTS):
                swarm_wire.send_request(sock, wanted or Digest(os.urandom(32).hex()))
                member.tally.did("chunk requests")
        finally:
            sock.close()


async def ring_hellos(member: Member) -> None:
    """Open and hold streams for reduces that do not exist."""
    async with trio.open_nursery() as nursery:
        while True:
            peer = random.choice(member.victims())
            hello = partial(_say_ring_hello, member, peer)
            nursery.start_soon(partial(trio.to_thread.run_sync, limiter=member.limit), hello)
            await pause(1.5)


def _say_ring_hello(member: Member, peer: PeerId) -> None:
    endpoint = member.context.peers.table.endpoint(peer)
    if endpoint is None:
        return
    hello = {
        "purpose": "ring",
        "run": member.context.ledger.snapshot.line,
        "step": random.randrange(1 << 20),
        "attempt": random.randrange(8),
        "stream": random.randrange(8),
    }
    with suppress(P2PTrainError, OSError):
        sock = dial(member.context.plane.credentials, endpoint, hello, deadline_s=ASK_S)
        member.tally.did("streams of reduces that do not exist")
        try:
            sock.set_deadline(HOLD_S)
            sock.receive_frame(1000)
        finally:
            sock.close()


ATTACKS = (
    replays,
    gossip_bombs,
    gossip_floods,
    alternating_checkpoints,
    invented_incarnations,
    identity_notices,
    forged_votes,
    high_rounds,
    false_endpoints,
    invented_joins,
    donation_requests,
    provider_records,
    chunk_requests,
    ring_hellos,
)
COUNTED = (
    "replayed heartbeats",
    "frames of 480,000 topics",
    "worst frames of a field",
    "rubbish gossip",
    "alternating checkpoints",
    "invented incarnations",
    "forged notices of identities",
    "forged ledger messages",
    "rounds out of turn",
    "false endpoints",
    "requests of invented peers",
    "requests for optimizer states",
    "provider records of a member",
    "chunk requests",
    "streams of reduces that do not exist",
    "false heartbeats",
)

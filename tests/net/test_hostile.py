"""No frame, stream or connection of a peer crashes a node or keeps the node from serving others.

GOSSIP_FRAMES contains input that crashed a process with plain libp2p 0.8.1.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from libp2p import new_host
from libp2p.abc import IHost
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.rsa import create_new_key_pair as create_rsa_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.pb import rpc_pb2
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.mplex.mplex import MPLEX_PROTOCOL_ID, Mplex
from libp2p.utils.varint import encode_varint_prefixed
from multiaddr import Multiaddr

from p2ptrain.eviction import nobody
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net import Network, PeerConnected, connections
from p2ptrain.net.room import Room

from .conftest import DEADLINE_S, echo, eventually, everybody, heard, host_of, identity, networks
from .hostile import Hostile, hostile_to

MESHSUB = "/meshsub/1.1.0"
TOPIC = "heartbeats"
P = "/test/1"


def rpc(**fields: Any) -> bytes:
    return bytes(encode_varint_prefixed(rpc_pb2.RPC(**fields).SerializeToString()))


def rsa_message() -> bytes:
    """Return a message by an author with an RSA key id and a malformed key."""
    message = rpc_pb2.Message(
        data=b"x",
        topicIDs=[TOPIC],
        from_id=b"\x12\x20" + os.urandom(32),
        seqno=b"1" * 8,
        key=b"\xff\xff\xff",
        signature=b"zz",
    )
    return rpc(publish=[message])


def odd_control() -> bytes:
    control = rpc_pb2.ControlMessage(
        ihave=[rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=[b"zz", b"\x00"])],
        iwant=[rpc_pb2.ControlIWant(messageIDs=[b"not-hex", b"(b'1', b'2')"])],
        graft=[rpc_pb2.ControlGraft(topicID="nope"), rpc_pb2.ControlGraft(topicID=TOPIC)],
        prune=[rpc_pb2.ControlPrune(topicID="nope"), rpc_pb2.ControlPrune(topicID=TOPIC)],
    )
    return rpc(control=control)


def many_subscriptions() -> bytes:
    subscription = rpc_pb2.RPC.SubOpts
    return rpc(subscriptions=[subscription(subscribe=True, topicid=str(n)) for n in range(5000)])


def unsigned(author: bytes) -> bytes:
    message = rpc_pb2.Message(data=b"forged", topicIDs=[TOPIC], from_id=author, seqno=b"2" * 8)
    return rpc(publish=[message])


GOSSIP_FRAMES = {
    "garbage": bytes(encode_varint_prefixed(os.urandom(150))),
    "rsa key": rsa_message(),
    "odd control": odd_control(),
    "many subscriptions": many_subscriptions(),
    "nothing": b"\x00",
    "empty rpc": rpc(),
    "huge length": b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    "endless length": b"\xff" * 40,
    "two megabytes announced": b"\x80\x80\x80\x01" + bytes(2000),
    "cut short": b"\x64half",
    "invalid record": rpc(senderRecord=os.urandom(100)),
    "no author": unsigned(b""),
    "odd author": unsigned(b"\x00\x01x"),
    "not utf-8": b"\x06\x0a\x04\x12\x02\xff\xfe",
}


class Swarm:
    """A victim, an honest peer, and a hostile peer. The victim must continue to serve the honest
    peer."""

    def __init__(self, victim: Network, honest: Network, hostile: Hostile) -> None:
        self.victim = victim
        self.honest = honest
        self.hostile = hostile
        victim.handle(P, echo)
        self._at_victim = victim.subscribe(TOPIC)
        self._at_honest = honest.subscribe(TOPIC)

    async def serves(self) -> None:
        """Check that the victim answers a request, and that gossip passes in both directions."""
        asked = await self.honest.request(self.victim.peer, P, b"x", deadline_s=DEADLINE_S)
        assert asked == b"x"
        await heard(self.honest, TOPIC, os.urandom(8), self._at_victim)
        await heard(self.victim, TOPIC, os.urandom(8), self._at_honest)


@asynccontextmanager
async def swarm() -> AsyncIterator[Swarm]:
    async with networks(2) as (victim, honest):
        await honest.connect(victim.addresses()[0])
        async with hostile_to(victim) as hostile:
            yield Swarm(victim, honest, hostile)


@pytest.mark.parametrize("name", GOSSIP_FRAMES)
async def test_malformed_gossip_frame_does_not_stop_the_node(name: str) -> None:
    async with swarm() as here:
        await here.serves()
        stream = await here.hostile.open(MESHSUB)
        await stream.write(GOSSIP_FRAMES[name])
        await here.serves()
        with suppress(StreamError):
            await stream.write(GOSSIP_FRAMES[name])
        await stream.close()
        await here.serves()


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_arbitrary_gossip_frames_do_not_stop_the_node(frames: list[bytes]) -> None:
    async def main() -> None:
        async with networks(1) as (victim,), hostile_to(victim) as hostile:
            victim.subscribe(TOPIC)
            for frame in frames:
                stream = await hostile.open(MESHSUB)
                await stream.write(encode_varint_prefixed(frame))
                await stream.close()
            victim.handle(P, echo)
            stream = await hostile.open(P)
            await stream.write(b"\x00\x00\x00\x01x")
            assert await stream.read(6) == b"\x00\x00\x00\x02\x00x"

    trio.run(main)


@pytest.mark.parametrize(
    "protocol",
    [
        "/ipfs/id/1.0.0",
        "/ipfs/id/push/1.0.0",
        "/ipfs/ping/1.0.0",
        "/ipfs/kad/1.0.0",
        MESHSUB,
        P,
    ],
)
async def test_garbage_on_every_protocol_does_not_stop_the_node(protocol: str) -> None:
    garbage = [b"", b"\xff" * 30, bytes(encode_varint_prefixed(b"\xff" * 90)), bytes(40_000)]
    async with swarm() as here:
        for sent in garbage:
            stream = await here.hostile.open(protocol)
            with suppress(StreamError):
                await stream.write(sent)
                await stream.close()
            another = await here.hostile.open(protocol)
            await another.reset()
            await here.serves()


@pytest.mark.parametrize("raised", [RuntimeError("bug"), StreamError("stream reset")])
async def test_exception_in_a_stream_handler_does_not_stop_the_node(raised: Exception) -> None:
    """With plain libp2p, some exceptions end the host. Others make the connection refuse further
    streams."""
    async with swarm() as here:

        async def boom(stream: object) -> None:
            raise raised

        host_of(here.victim).set_stream_handler(TProtocol("/boom"), boom)
        with suppress(StreamError):
            stream = await here.hostile.open("/boom")
            await stream.write(b"1234")
        ping = await here.hostile.open("/ipfs/ping/1.0.0")
        await ping.write(bytes(32))
        assert await ping.read(32) == bytes(32)
        await here.serves()


async def test_exception_in_a_validator_loses_only_the_message() -> None:
    async with swarm() as here:

        def boom(forwarder: PeerId, author: PeerId, payload: bytes) -> bool:
            if payload == b"x":
                raise RuntimeError("bug")
            return True

        here.victim.set_validator(TOPIC, boom)
        for _ in range(3):
            await here.honest.publish(TOPIC, b"x")
        await here.serves()


async def test_gossip_works_again_with_a_peer_that_once_sent_garbage() -> None:
    async with networks(2) as (victim, other):
        at_victim, at_other = victim.subscribe(TOPIC), other.subscribe(TOPIC)
        await other.connect(victim.addresses()[0])
        at, to = host_of(other), ID.from_base58(victim.peer)
        stream = await at.new_stream(to, [TProtocol(MESHSUB)])
        await stream.write(GOSSIP_FRAMES["garbage"])
        await heard(other, TOPIC, b"after", at_victim)
        await heard(victim, TOPIC, b"after", at_other)


Attack = Callable[[trio.SocketStream], Awaitable[None]]


async def send_nothing(stream: trio.SocketStream) -> None:
    await trio.lowlevel.checkpoint()


async def send_garbage(stream: trio.SocketStream) -> None:
    await stream.send_all(os.urandom(5000))


async def send_http(stream: trio.SocketStream) -> None:
    await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


async def send_half_a_negotiation(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\x13/multistream/1.0.0\n\x07/noi")


async def send_a_corrupt_handshake(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\x13/multistream/1.0.0\n\x07/noise\n" + b"\x00\x20" + os.urandom(32))
    with suppress(trio.BrokenResourceError):
        await stream.send_all(b"\xff\xff" + os.urandom(70_000))


@pytest.mark.parametrize(
    "attack",
    [send_nothing, send_garbage, send_http, send_half_a_negotiation, send_a_corrupt_handshake],
)
async def test_connections_that_do_not_speak_libp2p_do_not_stop_the_node(attack: Attack) -> None:
    async with networks(2) as (victim, honest):
        victim.handle(P, echo)
        port = int(victim.addresses()[0].split("/")[4])
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(10)]
        for stream in streams:
            with suppress(trio.BrokenResourceError):
                await attack(stream)
        assert await honest.connect(victim.addresses()[0], deadline_s=DEADLINE_S) == victim.peer
        assert await honest.request(victim.peer, P, b"x", deadline_s=DEADLINE_S) == b"x"
        for stream in streams:
            await stream.aclose()
        assert victim.connected() == {honest.peer}


async def test_peer_that_dials_repeatedly_does_not_exhaust_the_node() -> None:
    """A plain libp2p host refuses every peer after a total of 250 connections."""
    async with networks(2) as (victim, honest), hostile_to(victim) as hostile:
        address = Multiaddr(victim.addresses()[0].split("/p2p/")[0])
        for _ in range(20):
            with suppress(SwarmException):
                await hostile.host.get_network().dial_addr(address, hostile.victim)
        assert await honest.connect(victim.addresses()[0]) == victim.peer
        victim.handle(P, echo)
        assert await honest.request(victim.peer, P, b"x", deadline_s=DEADLINE_S) == b"x"
        network = host_of(victim).get_network()
        hostile_id = hostile.host.get_id()
        await eventually(
            lambda: len(network.get_connections(hostile_id)) <= connections.PER_PEER_MAX
        )
        assert network._inbound_limiter.available_tokens > 10**8  # type: ignore[attr-defined]


@asynccontextmanager
async def speaking(offer: str) -> AsyncIterator[IHost]:
    """Run a host with Noise, yamux and an Ed25519 key. If `offer` is "plaintext", "mplex" or "rsa",
    it replaces one of the three."""
    keys = create_rsa_key_pair() if offer == "rsa" else create_new_key_pair(b"k" * 32)
    noise = {NOISE_ID: NoiseTransport(keys, create_x25519_key_pair().private_key)}
    plain = {TProtocol(PLAINTEXT_PROTOCOL_ID): InsecureTransport(keys, peerstore=None)}
    host = new_host(
        key_pair=keys,
        sec_opt=plain if offer == "plaintext" else noise,
        muxer_opt={TProtocol(MPLEX_PROTOCOL_ID): Mplex} if offer == "mplex" else None,
    )
    async with host.run([]):
        yield host
        with trio.move_on_after(3):
            await host.close()


@pytest.mark.parametrize("offer", ["plaintext", "mplex", "rsa"])
async def test_peer_with_unsupported_protocols_is_refused(offer: str) -> None:
    async with networks(1) as (victim,):
        address = info_from_p2p_addr(Multiaddr(victim.addresses()[0]))
        async with speaking("the usual protocols") as host:
            await host.connect(address)
            await eventually(lambda: victim.connected() == {str(host.get_id())})
        await eventually(lambda: victim.connected() == set())
        async with speaking(offer) as host:
            with pytest.raises((SwarmException, ExceptionGroup)):
                await host.connect(address)
            assert victim.connected() == set()


async def test_number_of_strangers_connections_is_bounded() -> None:
    admitted: set[PeerId] = set()
    gates = [admitted.__contains__, *[everybody] * 4]
    async with networks(5, gates, room=Room(strangers=2)) as (victim, *others):
        for other in others:
            await other.connect(victim.addresses()[0])
        await eventually(lambda: len(victim.connected()) == 2)
        assert others[-1].peer in victim.connected()
        await eventually(lambda: sum(bool(other.connected()) for other in others) == 2)
        admitted.update(other.peer for other in others)
        victim.refresh_admission()
        for other in others:
            await other.connect(victim.addresses()[0])
        await eventually(lambda: len(victim.connected()) == 4)


async def test_flood_of_events_drops_the_oldest_events() -> None:
    def ignore(what: object) -> None:
        pass

    def connection(of: Identity) -> Any:
        muxed = {"peer_id": ID.from_base58(of.peer), "get_remote_address": lambda: None}
        return SimpleNamespace(muxed_conn=SimpleNamespace(**muxed))

    network: Any = None
    size, one, other = connections.EVENTS_MAX, connection(identity(1)), connection(identity(2))
    it = connections.Connections(
        everybody, nobody, drop=ignore, close=ignore, check=ignore, gone=ignore
    )
    for _ in range(size // 2 + 5):
        await it.connected(network, one)
        await it.disconnected(network, one)
    await it.connected(network, other)
    assert it.feed.lost == 11
    events = [it.feed.receiver.receive_nowait() for _ in range(size)]
    assert events[-1] == PeerConnected(identity(2).peer)

"""Gossip among those who are admitted: what strangers send is not heard, and they hear nothing.

libp2p's pubsub is kept from ending the node: a frame that cannot be parsed, a key of another kind
or a failing validator costs its stream or its message. A stranger's stream is left unread until it
is admitted, so that nothing of what it said meanwhile is lost, its subscriptions above all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.io.exceptions import IOException, MessageTooLarge
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.utils import maybe_consume_signed_record
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from p2ptrain.crowding import IsMember
from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.net.control import bounded
from p2ptrain.net.feed import SharedFeed
from p2ptrain.net.hardening import is_open
from p2ptrain.net.intake import AT_ONCE, Intake

log = logging.getLogger(__name__)

PAYLOAD_BYTES_MAX = 480 << 10
"""libp2p loses frames above 1 MiB, silently: two of the largest fit one. The largest that there are
is a ledger's proposal with the promises of 1,024 members.
"""
PENDING_MAX = 8
"""A frame may carry all messages that wait for a peer's stream. If more than two of the largest are
among them they are lost, as any gossip may be.
"""
FEED_SIZE = 256
"""A heartbeat of each of 100 members, twice over, while the node is busy."""
PER_AUTHOR_MAX = 32
"""What a member says in two or three outer steps: nobody reads what is older."""
AUTHOR_BYTES_MAX = 64
"""An Ed25519 peer's id has 38. To write one of a megabyte in base58 takes a quarter of an hour."""
SEQNO_BYTES_MAX = 8
"""It is kept for two minutes, as part of the message's id."""
PARKED_MAX = 64
"""Strangers whose stream waits; a connection holds at most 1 MiB unread (bounds.py)."""

Admitted = Callable[[PeerId], bool]
Message = tuple[PeerId, bytes]


class ContainedRouter(GossipSub):
    """GossipSub whose background work cannot end it, and who is new gets no pile of old news."""

    async def heartbeat(self) -> None:
        while True:
            try:
                await super().heartbeat()
            except Exception as exc:
                log.debug("a heartbeat of the gossip mesh failed: %r", exc)
                await trio.sleep(self.heartbeat_interval)

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """To a peer that has just subscribed: the newest message of each author.

        libp2p repeats all of the last seconds, each with a newly signed record. Where many connect
        anew at once, checking those took a starved node a third of its time, so that it was late
        with its own heartbeats and was given up again.
        """
        pubsub = self.pubsub
        stream = None if pubsub is None else pubsub.peers.get(peer_id)
        if pubsub is None or stream is None:
            return
        newest: dict[bytes, rpc_pb2.Message] = {}
        for message in map(self.mcache.get, self.mcache.window(topic)):
            known = None if message is None else newest.get(message.from_id)
            if message is not None and (known is None or known.seqno < message.seqno):
                newest[message.from_id] = message
        for message in newest.values():
            await pubsub.write_msg(stream, rpc_pb2.RPC(publish=[message]))


class GatedPubsub(Pubsub):
    """Pubsub that knows who is admitted, and contains what peers can make fail."""

    def __init__(
        self,
        host: IHost,
        router: GossipSub,
        admitted: Admitted,
        intake: Intake,
        deliver: Callable[[str, Message], None],
    ) -> None:
        super().__init__(host, router, strict_signing=True)
        # The default restarts at the second of the start: after a restart our messages would be
        # taken for repetitions of older ones.
        self.counter = time.time_ns()
        self._admitted = admitted
        self._intake = intake
        self._kept = router.mcache.get
        self._deliver = deliver
        self._parked: dict[ID, tuple[INetStream, trio.Event]] = {}

    def is_admitted(self, peer: ID) -> bool:
        return bool(peer == self.my_id or self._admitted(PeerId(str(peer))))

    def refresh(self) -> None:
        """Admission may have changed: let in who waits, cut off who may no longer hear us."""
        for peer in [peer for peer in self._parked if self.is_admitted(peer)]:
            self._parked.pop(peer)[1].set()
        for peer in [peer for peer in self.peers if not self.is_admitted(peer)]:
            self._handle_dead_peer(peer)
        for peer in self.host.get_connected_peers():
            if peer not in self.peers and self.is_admitted(peer):
                self._schedule_peer_stream_retry(peer)

    async def stream_handler(self, stream: INetStream) -> None:
        peer = stream.muxed_conn.peer_id
        try:
            if not self.is_admitted(peer) and not await self._wait_for_admission(peer, stream):
                return
            await super().stream_handler(stream)
        except Exception as exc:
            log.debug("the gossip stream of %s ended: %r", peer, exc)
            with suppress(Exception):
                await stream.reset()
            self._handle_dead_peer(peer)

    async def continuously_read_stream(self, stream: INetStream) -> None:
        """In place of libp2p's own, which checks and delivers whatever a frame holds, each message
        in a task, and asks only then how much its neighbour may bring.
        """
        peer = stream.muxed_conn.peer_id
        try:
            while self.manager.is_running:
                frame = await read_varint_prefixed_bytes_limited(stream, self.max_inbound_rpc_size)
                if self._intake.takes_frame(PeerId(str(peer)), trio.current_time()):
                    await self._take_frame(peer, rpc_pb2.RPC.FromString(frame))
        except MessageTooLarge:
            raise  # An IOException, but its stream lives: stream_handler is to reset it.
        except (StreamError, IOException, RawConnError) as exc:
            log.debug("the gossip stream of %s ended: %r", peer, exc)

    async def _take_frame(self, peer: ID, rpc: Any) -> None:
        if not maybe_consume_signed_record(rpc, self.host, peer):
            return
        for message in self._worth_checking(PeerId(str(peer)), rpc.publish):
            await self.push_msg(peer, message)
            await trio.lowlevel.checkpoint()  # Nothing in it waits, and others have their turn.
        if len(rpc.subscriptions) <= self.max_subscriptions_per_rpc:
            for subscription in rpc.subscriptions:
                self.handle_subscription(peer, subscription)
        if rpc.HasField("control"):
            heeded = bounded(rpc.control, self.topic_ids, self._kept)
            await self.router.handle_rpc(rpc_pb2.RPC(control=heeded), peer)

    def _worth_checking(self, forwarder: PeerId, messages: Any) -> list[rpc_pb2.Message]:
        """What is news among what a frame holds, as far as its sender may bring it. What is left
        out is not taken for seen: it is still news when another neighbour brings it.
        """
        if len(messages) > AT_ONCE:
            self._intake.refuse(forwarder, len(messages) - AT_ONCE)
        return [message for message in messages[:AT_ONCE] if self._takes(forwarder, message)]

    def _takes(self, forwarder: PeerId, message: rpc_pb2.Message) -> bool:
        if not self._is_subscribed_to_msg(message):
            return False
        if len(message.from_id) > AUTHOR_BYTES_MAX or len(message.seqno) > SEQNO_BYTES_MAX:
            return self._intake.refuse(forwarder)
        if self._is_msg_seen(message):
            return False
        author, now = PeerId(str(ID(message.from_id))), trio.current_time()
        return self._intake.takes(forwarder, author, message.ByteSize(), now)

    async def push_msg(self, msg_forwarder: ID, msg: Any) -> None:
        try:
            if self.is_admitted(msg_forwarder) and self.is_admitted(ID(msg.from_id)):
                await super().push_msg(msg_forwarder, msg)
        except Exception as exc:
            log.debug("a message by way of %s was dropped: %r", msg_forwarder, exc)

    def notify_subscriptions(self, publish_message: Any) -> None:
        """Deliver at once: libp2p's own queue is short and, when full, loses the newest."""
        message = PeerId(str(ID(publish_message.from_id))), bytes(publish_message.data)
        for topic in publish_message.topicIDs:
            self._deliver(topic, message)

    async def _handle_new_peer(self, peer_id: ID) -> None:
        if self.is_admitted(peer_id):
            await super()._handle_new_peer(peer_id)

    def _handle_dead_peer(self, peer_id: ID) -> None:
        """A stream of this peer has ended; its connection may live, and then so do its topics.

        libp2p forgets the topics in any case, though the peer will not tell them again.
        """
        stream = self.peers.get(peer_id)
        topics = [topic for topic, peers in self.peer_topics.items() if peer_id in peers]
        super()._handle_dead_peer(peer_id)
        if stream is not None:
            self.manager.run_task(stream.reset)
        if self._peer_is_connected(peer_id):
            for topic in topics:
                self.peer_topics.setdefault(topic, set()).add(peer_id)
            self._peer_subscription_count[peer_id] = len(topics)

    async def _wait_for_admission(self, peer: ID, stream: INetStream) -> bool:
        """Leave `stream` unread until its peer is admitted; False if it had to make room."""
        admitted = trio.Event()
        crowded = len(self._parked) >= PARKED_MAX
        replaced = peer if peer in self._parked else next(iter(self._parked)) if crowded else None
        if replaced is not None:
            await self._parked.pop(replaced)[0].reset()
        self._parked[peer] = stream, admitted
        while not admitted.is_set():
            with trio.move_on_after(1.0):
                await admitted.wait()
            if self._parked.get(peer, (stream,))[0] is not stream or not is_open(stream):
                break
        if admitted.is_set():
            return True
        if self._parked.get(peer, (None,))[0] is stream:
            del self._parked[peer]
        return False


class Gossip:
    """Topics to publish to and to follow. `pubsub` and `router` are services to run."""

    def __init__(self, host: IHost, admitted: Admitted, is_member: IsMember) -> None:
        self.intake = Intake(is_member)
        self.router = ContainedRouter(
            [PROTOCOL_ID_V11],
            degree=6,
            degree_low=4,
            degree_high=10,
            heartbeat_interval=1,
            heartbeat_initial_delay=0.2,
            max_messages_per_topic_per_second=1000.0,  # our own too, without a word; see intake
            eclipse_protection_enabled=False,  # it wants peers of many networks: one LAN is fine
            prune_back_off=5,
            max_pending_messages_per_peer=PENDING_MAX,
        )
        self.pubsub = GatedPubsub(host, self.router, admitted, self.intake, self._deliver)
        self._me = PeerId(str(host.get_id()))
        self._feeds: dict[str, SharedFeed[bytes]] = {}

    async def publish(self, topic: str, payload: bytes) -> None:
        """Send `payload`, signed, to everybody who follows `topic`; nobody need have got it.

        Raises:
            LocalProtocolError: it is too long.
        """
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise LocalProtocolError(f"{len(payload)} bytes are too much for gossip")
        await self.pubsub.publish(topic, payload)
        # libp2p's queue to each peer holds 32; its writers empty it while we wait here.
        await trio.lowlevel.checkpoint()

    def feed(self, topic: str) -> tuple[SharedFeed[bytes], bool]:
        """The feed of `topic`, and whether it is new: then somebody must run `follow`."""
        new = topic not in self._feeds
        if new:
            self._feeds[topic] = SharedFeed(FEED_SIZE, PER_AUTHOR_MAX)
        return self._feeds[topic], new

    async def follow(self, topic: str) -> None:
        """Tell the others that we want to hear `topic`."""
        await self.pubsub.subscribe(topic)

    def _deliver(self, topic: str, message: Message) -> None:
        """Put what others published into the feed of its topic."""
        feed = self._feeds.get(topic)
        if feed is not None and message[0] != self._me:
            feed.push(*message)

    def statistics(self) -> dict[str, int]:
        """Messages lost by topic, because nobody took them in time."""
        return {topic: feed.lost for topic, feed in self._feeds.items()}

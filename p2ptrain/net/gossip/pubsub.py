"""Gossip among admitted peers. A stranger (a peer not admitted) is not read and receives nothing.

This module keeps libp2p's pubsub from ending the node: a frame that cannot be parsed, an unexpected
kind of key or a failing validator costs only its stream or its message. A stranger's stream is left
unread until the stranger is admitted. So nothing that the stranger sent before is lost, above all
its subscriptions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
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
from libp2p.tools.anyio_service import background_trio_service
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from p2ptrain.errors import LocalProtocolError
from p2ptrain.eviction import IsMember
from p2ptrain.ids import PeerId
from p2ptrain.net.feed import SharedFeed
from p2ptrain.net.gossip.control import bounded
from p2ptrain.net.gossip.frames import PAYLOAD_BYTES_MAX, is_ordinary, subscriptions_of
from p2ptrain.net.gossip.limits import AT_ONCE, GossipLimits
from p2ptrain.net.host.hardening import contain_tasks, is_open
from p2ptrain.net.room import ROOM, Room
from p2ptrain.rate_limit import Allowance

log = logging.getLogger(__name__)

PENDING_MAX = 8
"""Maximum number of messages that may wait for a peer's stream. libp2p may put all of them into one
frame. If more than two of them have the maximum size, the frame is too long, and all are lost."""
FEED_SIZE = 256
"""Capacity of a topic's feed: two heartbeats of each of 100 members, while the node is busy."""
PER_AUTHOR_MAX = 32
"""Maximum number of waiting messages of one author: a member sends about as many in two or three
outer steps, and nobody needs older ones."""
SUBSCRIPTIONS_PER_PEER_MAX = 16
REPLAYS_AT_ONCE = 8
REPLAYS_PER_S = 1 / 15
"""Limits on replays, which send one peer the newest message of each author on a topic. They allow
two connections in a row with four topics each, and then one replay in 15 s. A replay may have a
hundred messages, and a peer can request it with few bytes: it only has to open its stream again and
subscribe."""

Admitted = Callable[[PeerId], bool]
Validator = Callable[[PeerId, PeerId, bytes], bool]
"""`validator(forwarder, author, payload)` returns whether to deliver and forward a message."""
Message = tuple[PeerId, bytes]


class ContainedRouter(GossipSub):
    """A GossipSub that survives failures of its background work and stores little per neighbour."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._replays = Allowance(REPLAYS_AT_ONCE, REPLAYS_PER_S)

    def _check_equivocation(self, msg: rpc_pb2.Message) -> bool:
        """Accept every message. libp2p's own check looks for two different messages with the same
        author and number, and stores up to 1,000 whole messages (480 MB) for this. For two minutes,
        it cannot find any, because the second message is dropped as already seen. Our code does not
        rely on the check: the ledger finds conflicting votes by their own signatures."""
        return True

    def remove_peer(self, peer_id: ID) -> None:
        """Forget a peer that has left, and all expired backoffs (times before which a peer may not
        rejoin the mesh). libp2p itself keeps a backoff until the same peer grafts again."""
        super().remove_peer(peer_id)
        now = int(time.time())
        for topic, ends in self.back_off.items():
            self.back_off[topic] = {peer: end for peer, end in ends.items() if end > now}

    async def heartbeat(self) -> None:
        while True:
            try:
                await super().heartbeat()
            except Exception as exc:
                log.debug("a heartbeat of the gossip mesh failed: %r", exc)
                await trio.sleep(self.heartbeat_interval)

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """Send a peer that has just subscribed the newest message of each author, within a rate
        limit.

        libp2p repeats all messages of the last seconds, each with a newly signed record. When many
        peers reconnected at once, an overloaded node spent a third of its time checking them. Its
        own heartbeats were late, and the other peers treated it as failed again.
        """
        pubsub = self.pubsub
        stream = None if pubsub is None else pubsub.peers.get(peer_id)
        if pubsub is None or stream is None:
            return
        if not self._replays.consume(peer_id, 1, trio.current_time()):
            return
        newest: dict[bytes, rpc_pb2.Message] = {}
        for message in map(self.mcache.get, self.mcache.window(topic)):
            known = None if message is None else newest.get(message.from_id)
            if message is not None and (known is None or known.seqno < message.seqno):
                newest[message.from_id] = message
        for message in newest.values():
            await pubsub.write_msg(stream, rpc_pb2.RPC(publish=[message]))


class GatedPubsub(Pubsub):
    """A Pubsub that serves only admitted peers, and survives the failures that peers can cause."""

    def __init__(
        self,
        host: IHost,
        router: GossipSub,
        admitted: Admitted,
        limits: GossipLimits,
        deliver: Callable[[str, Message], None],
        waiting_max: int,
    ) -> None:
        super().__init__(
            host,
            router,
            strict_signing=True,
            max_subscriptions_per_peer=SUBSCRIPTIONS_PER_PEER_MAX,
        )
        # By default the counter starts at the current time in seconds. Then peers would mistake our
        # messages after a restart for repetitions of older messages.
        self.counter = time.time_ns()
        self._admitted = admitted
        self._limits = limits
        self._kept = router.mcache.get
        self._deliver = deliver
        self._waiting_max = waiting_max
        self._parked: dict[ID, tuple[INetStream, trio.Event]] = {}
        self.validators: dict[str, Validator] = {}

    def waiting(self) -> list[PeerId]:
        """Return the strangers whose stream waits until they are admitted, the oldest first."""
        return [PeerId(str(peer)) for peer in self._parked]

    def is_admitted(self, peer: ID) -> bool:
        return bool(peer == self.my_id or self._admitted(PeerId(str(peer))))

    def refresh(self) -> None:
        """Apply a change of admission: read the streams of waiting peers that are admitted now, and
        end the streams of peers that are no longer admitted."""
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
        """Read frames until the stream ends, in place of libp2p's own loop.

        libp2p starts a task for each message of a frame, which checks and delivers the message. It
        applies the limits per neighbour only afterwards.
        """
        peer = stream.muxed_conn.peer_id
        forwarder = PeerId(str(peer))
        try:
            while self.manager.is_running:
                frame = await read_varint_prefixed_bytes_limited(stream, self.max_inbound_rpc_size)
                if self._limits.admits_frame(forwarder, len(frame), trio.current_time()):
                    await self._take_frame(peer, rpc_pb2.RPC.FromString(frame))
        except MessageTooLarge:
            raise  # An IOException, but the stream is still open, so stream_handler must reset it.
        except (StreamError, IOException, RawConnError) as exc:
            log.debug("the gossip stream of %s ended: %r", peer, exc)

    async def _take_frame(self, peer: ID, rpc: Any) -> None:
        """Handle the parts of a frame that we accept.

        The sender's signed record with its addresses is not read: libp2p's own dials are switched
        off, and heartbeats announce addresses. Checking the record took 1 ms for each frame.
        """
        forwarder = PeerId(str(peer))
        for message in self._worth_checking(forwarder, rpc.publish):
            await self.push_msg(peer, message)
            await trio.lowlevel.checkpoint()  # `push_msg` never yields, so let other tasks run.
        subscriptions = subscriptions_of(rpc)
        if self._limits.admits_entries(forwarder, len(subscriptions), trio.current_time()):
            for subscription in subscriptions:
                self.handle_subscription(peer, subscription)
        if rpc.HasField("control"):
            heeded = bounded(rpc.control, self.topic_ids, self._kept)
            await self.router.handle_rpc(rpc_pb2.RPC(control=heeded), peer)

    def _worth_checking(self, forwarder: PeerId, messages: Any) -> list[rpc_pb2.Message]:
        """Return the new messages of a frame that are within its sender's limits. The others are
        not marked as seen, so they are still new when another neighbour sends them."""
        if len(messages) > AT_ONCE:
            self._limits.refuse(forwarder, len(messages) - AT_ONCE)
        return [message for message in messages[:AT_ONCE] if self._takes(forwarder, message)]

    def _takes(self, forwarder: PeerId, message: rpc_pb2.Message) -> bool:
        if not is_ordinary(message):
            return self._limits.refuse(forwarder)
        if message.topicIDs[0] not in self.topic_ids or self._is_msg_seen(message):
            return False
        author, now = PeerId(str(ID(message.from_id))), trio.current_time()
        return self._limits.admits_message(forwarder, author, message.ByteSize(), now)

    async def push_msg(self, msg_forwarder: ID, msg: Any) -> None:
        try:
            admitted = self.is_admitted(msg_forwarder) and self.is_admitted(ID(msg.from_id))
            if admitted and self._is_wanted(msg_forwarder, msg):
                await super().push_msg(msg_forwarder, msg)
        except Exception as exc:
            log.debug("a message through %s was dropped: %r", msg_forwarder, exc)

    def _is_wanted(self, forwarder: ID, message: Any) -> bool:
        """Return whether the validators of the message's topics accept the message. They are called
        before the signature check, because they take less time, and because the result of the check
        would not make a refused message acceptable."""
        validators = [
            self.validators[topic] for topic in message.topicIDs if topic in self.validators
        ]
        if forwarder == self.my_id or not validators:
            return True
        names = PeerId(str(forwarder)), PeerId(str(ID(message.from_id)))
        return all(validator(*names, bytes(message.data)) for validator in validators)

    def notify_subscriptions(self, publish_message: Any) -> None:
        """Deliver a message immediately. libp2p's own queue is short, and drops the newest message
        when it is full."""
        message = PeerId(str(ID(publish_message.from_id))), bytes(publish_message.data)
        for topic in publish_message.topicIDs:
            self._deliver(topic, message)

    async def _handle_new_peer(self, peer_id: ID) -> None:
        if self.is_admitted(peer_id):
            await super()._handle_new_peer(peer_id)

    async def handle_dead_peer_queue(self) -> None:
        """Handle the end of each connection, in place of libp2p's own loop.

        libp2p ignores the end of a connection if the peer has already connected again. It then
        keeps the stream of the old connection until a write fails. Until then, the peer does not
        learn what we subscribe to.
        """
        async with self.dead_peer_receive_channel:
            self.event_handle_dead_peer_queue_started.set()
            async for peer in self.dead_peer_receive_channel:
                stream = self.peers.get(peer)
                has_ended = stream is not None and stream.muxed_conn.is_closed
                if has_ended or not self._peer_is_connected(peer):
                    self._handle_dead_peer(peer)

    def _handle_dead_peer(self, peer_id: ID) -> None:
        """Handle the end of a peer's stream. If the peer is still connected, keep its topics:
        libp2p itself forgets them, although the peer will not announce them again."""
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
        """Leave `stream` unread until `peer` is admitted. Return False if the stream ended before
        that."""
        admitted = trio.Event()
        crowded = len(self._parked) >= self._waiting_max
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
    """The topics of one host: publish to them, and receive their messages from feeds."""

    def __init__(
        self, host: IHost, admitted: Admitted, is_member: IsMember, room: Room = ROOM
    ) -> None:
        self.limits = GossipLimits(is_member)
        self.router = ContainedRouter(
            [PROTOCOL_ID_V11],
            degree=6,
            degree_low=4,
            degree_high=10,
            heartbeat_interval=1,
            heartbeat_initial_delay=0.2,
            # High, because this limit silently drops our own messages too; `limits` has our limits.
            max_messages_per_topic_per_second=1000.0,
            # With this option, libp2p takes a mesh of few peers for an unhealthy one and then waits
            # 30 to 60 s between its heartbeats. Meanwhile nobody repairs the mesh, and no message
            # is forgotten.
            adaptive_gossip_enabled=False,
            eclipse_protection_enabled=False,  # it requires peers in several networks
            prune_back_off=5,
            max_pending_messages_per_peer=PENDING_MAX,
        )
        self.pubsub = GatedPubsub(
            host, self.router, admitted, self.limits, self._deliver, room.waiting
        )
        self._me = PeerId(str(host.get_id()))
        self._feeds: dict[str, SharedFeed[bytes]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the services while the block lasts. The host must be running."""
        async with AsyncExitStack() as stack:
            for service in (self.pubsub, self.router):
                contain_tasks(await stack.enter_async_context(background_trio_service(service)))
            await self.pubsub.wait_until_ready()
            yield

    async def publish(self, topic: str, payload: bytes) -> None:
        """Sign `payload` and send it to all subscribers of `topic`. Delivery is not guaranteed.
        Raises LocalProtocolError if `payload` is too long."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise LocalProtocolError(f"a gossip payload of {len(payload)} bytes is too long")
        await self.pubsub.publish(topic, payload)
        # libp2p's queue for each peer holds 32 messages; its writers empty it while we wait here.
        await trio.lowlevel.checkpoint()

    def feed(self, topic: str) -> tuple[SharedFeed[bytes], bool]:
        """Return the feed of `topic`, and whether it is new. For a new feed, the caller must await
        `pubsub.subscribe(topic)`."""
        new = topic not in self._feeds
        if new:
            self._feeds[topic] = SharedFeed(FEED_SIZE, PER_AUTHOR_MAX)
        return self._feeds[topic], new

    def _deliver(self, topic: str, message: Message) -> None:
        """Put a message of another peer into the feed of its topic."""
        feed = self._feeds.get(topic)
        if feed is not None and message[0] != self._me:
            feed.push(*message)

    def statistics(self) -> dict[str, object]:
        """Return the peers that receive gossip, the strangers that wait for admission, the number
        of messages of each topic lost from full feeds, and the number of refused messages."""
        return {
            "gossip_peers": [PeerId(str(peer)) for peer in self.pubsub.peers],
            "gossip_waiting": self.pubsub.waiting(),
            "gossip_lost": {topic: feed.lost for topic, feed in self._feeds.items()},
            "gossip_refused": self.limits.refused,
        }

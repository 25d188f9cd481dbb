"""Some gossip frames make plain libp2p loop, store or answer endlessly. Here their cost is bounded.

Most tests send an attacker's frame to a real host. `scripts/worst_frames` measures the CPU time of
such frames.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX
from libp2p.utils.varint import encode_varint_prefixed, read_varint_prefixed_bytes_limited

from p2ptrain.eviction import nobody
from p2ptrain.net.gossip.control import BACK_OFF_S_MAX, ENTRIES_MAX, NAME_BYTES_MAX, bounded
from p2ptrain.net.gossip.frames import (
    ENVELOPE_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    TOPIC_BYTES_MAX,
    is_ordinary,
    subscriptions_of,
)
from p2ptrain.net.gossip.limits import BYTES_PER_UNIT, FRAMES_AT_ONCE, GossipLimits
from p2ptrain.net.gossip.pubsub import REPLAYS_AT_ONCE, Gossip
from p2ptrain.net.host.hardening import build_host, running

from .conftest import LOOPBACK, eventually, everybody, heard, identity, networks
from .hostile import IDENTITY, Hostile, dial, hostile_to
from .worst_frames import distinct_topics

MESHSUB = "/meshsub/1.1.0"
TOPIC = "heartbeats"


def signed(by: Hostile, number: int, topics: list[str], **fields: Any) -> rpc_pb2.Message:
    made = rpc_pb2.Message(
        from_id=by.host.get_id().to_bytes(),
        data=b"x",
        topicIDs=topics,
        seqno=number.to_bytes(8, "big"),
    )
    made.signature = by.host.get_private_key().sign(
        PUBSUB_SIGNING_PREFIX.encode() + made.SerializeToString()
    )
    made.MergeFrom(rpc_pb2.Message(**fields))
    return made


def frame(**fields: Any) -> bytes:
    return bytes(encode_varint_prefixed(rpc_pb2.RPC(**fields).SerializeToString()))


@asynccontextmanager
async def gossiping() -> AsyncIterator[Gossip]:
    """Yield a `Gossip` on its own host, without the other objects of a network."""
    host = build_host(identity(50))
    gossip = Gossip(host, everybody, nobody)
    async with running(host, list(LOOPBACK)), gossip.running():
        yield gossip


class TestTopics:
    async def test_message_on_many_topics_is_neither_checked_nor_forwarded(
        self, checked: list[rpc_pb2.Message]
    ) -> None:
        """In a reported attack, a message on many topics cost each receiver 1.65 s of CPU time, and
        each receiver forwarded the message."""
        async with networks(2) as (victim, behind):
            at_victim, at_behind = victim.subscribe(TOPIC), behind.subscribe(TOPIC)
            await behind.connect(victim.addresses()[0])
            await heard(behind, TOPIC, b"first", at_victim)
            async with hostile_to(victim) as hostile:
                stream = await hostile.open(MESHSUB)
                hostile_frame = frame(publish=[signed(hostile, 1, [TOPIC, *distinct_topics()])])
                assert len(hostile_frame) > 950_000
                await stream.write(hostile_frame)
                await stream.write(frame(publish=[signed(hostile, 2, [TOPIC, "another"])]))
                await stream.write(frame(publish=[signed(hostile, 3, [TOPIC])]))
                with trio.fail_after(60):
                    while (await at_behind.receive())[0] != IDENTITY.peer:
                        pass
                assert victim.pop_floods() == {IDENTITY.peer: 2}
                assert {len(message.topicIDs) for message in checked} == {1}

    async def test_malformed_message_is_refused(self) -> None:
        async with networks(1) as (victim,), hostile_to(victim) as hostile:
            assert is_ordinary(signed(hostile, 1, [TOPIC]))
            assert not is_ordinary(signed(hostile, 1, []))
            assert not is_ordinary(signed(hostile, 1, [TOPIC], key=bytes(ENVELOPE_BYTES_MAX)))
            assert not is_ordinary(signed(hostile, 1, [TOPIC], signature=bytes(1 << 20)))
            unknown = signed(hostile, 1, [TOPIC]).SerializeToString() + b"\x78\x00" * 500
            assert not is_ordinary(rpc_pb2.Message.FromString(unknown))
            odd_author = signed(hostile, 1, [TOPIC], from_id=b"\x12\x20" + bytes(32))
            assert not is_ordinary(odd_author)


class TestSubscriptions:
    def test_only_the_last_subscription_to_each_topic_counts(self) -> None:
        told = [
            rpc_pb2.RPC.SubOpts(subscribe=number % 2 == 0, topicid=TOPIC) for number in range(21)
        ]
        told.append(rpc_pb2.RPC.SubOpts(subscribe=True, topicid="x" * (TOPIC_BYTES_MAX + 1)))
        heeded = subscriptions_of(rpc_pb2.RPC(subscriptions=told))
        assert [(each.topicid, each.subscribe) for each in heeded] == [(TOPIC, True)]

    def test_frame_with_too_many_subscriptions_is_ignored(self) -> None:
        told = [
            rpc_pb2.RPC.SubOpts(subscribe=True, topicid=str(n))
            for n in range(SUBSCRIPTIONS_MAX + 1)
        ]
        assert subscriptions_of(rpc_pb2.RPC(subscriptions=told)) == []

    async def test_repeated_subscriptions_are_not_answered_each_time(self) -> None:
        """Plain libp2p sends the recent messages again after each subscription: a hundred messages
        in a large run."""
        async with networks(1) as (victim,), hostile_to(victim) as hostile:
            feed = victim.subscribe(TOPIC)
            await victim.publish(TOPIC, b"recent")
            told: list[bytes] = []

            async def listen(stream: INetStream) -> None:
                while True:
                    sent = await read_varint_prefixed_bytes_limited(stream, 1 << 20)
                    told.extend(each.data for each in rpc_pb2.RPC.FromString(sent).publish)

            hostile.host.set_stream_handler(TProtocol(MESHSUB), listen)
            stream = await hostile.open(MESHSUB)
            await eventually(lambda: victim.statistics()["gossip_peers"] == [hostile.peer])
            one = rpc_pb2.RPC.SubOpts
            for _ in range(10 * REPLAYS_AT_ONCE):
                await stream.write(frame(subscriptions=[one(subscribe=False, topicid=TOPIC)]))
                await stream.write(frame(subscriptions=[one(subscribe=True, topicid=TOPIC)]))
            await stream.write(frame(publish=[signed(hostile, 1, [TOPIC])]))
            await feed.receive()  # By now the victim has processed all earlier frames.
            await victim.publish(TOPIC, b"last")
            await eventually(lambda: b"last" in told)
            assert 0 < told.count(b"recent") <= REPLAYS_AT_ONCE + 1

    async def test_subscriptions_use_up_a_neighbours_allowance(self) -> None:
        """Each subscription that a node processes starts three tasks."""
        async with networks(1) as (victim,), hostile_to(victim) as hostile:
            stream = await hostile.open(MESHSUB)
            one = rpc_pb2.RPC.SubOpts
            told = [one(subscribe=True, topicid=str(n)) for n in range(SUBSCRIPTIONS_MAX)]
            for _ in range(2 * FRAMES_AT_ONCE // SUBSCRIPTIONS_MAX):
                await stream.write(frame(subscriptions=told))
            await eventually(lambda: victim.statistics()["gossip_refused"] != 0)


def test_number_of_control_entries_and_length_of_ids_are_bounded() -> None:
    topics = [str(number) for number in range(2 * ENTRIES_MAX)]
    long = b"aa" * NAME_BYTES_MAX
    control = rpc_pb2.ControlMessage(
        ihave=[rpc_pb2.ControlIHave(topicID=t, messageIDs=[b"aa", long]) for t in topics],
        iwant=[rpc_pb2.ControlIWant(messageIDs=[long]) for _ in topics],
        graft=[rpc_pb2.ControlGraft(topicID=t) for t in topics],
        prune=[rpc_pb2.ControlPrune(topicID=t, backoff=1 << 60) for t in topics],
    )
    asked: list[bytes] = []
    heeded = bounded(control, set(topics), asked.append)
    assert asked == []
    assert [len(kind) for kind in (heeded.ihave, heeded.graft, heeded.prune)] == [ENTRIES_MAX] * 3
    assert {name for told in heeded.ihave for name in told.messageIDs} == {b"aa"}
    assert {told.backoff for told in heeded.prune} == {BACK_OFF_S_MAX}


async def test_number_of_iwant_entries_that_are_read_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame has room for half a million empty entries."""

    class Endless(list[rpc_pb2.ControlIWant]):
        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("the code loops over all entries")

    class Control:
        ihave = graft = prune = ()
        iwant = Endless([rpc_pb2.ControlIWant()] * 1000)

    assert not bounded(Control(), {TOPIC}, lambda name: None).iwant  # type: ignore[arg-type]


def test_long_frames_use_up_a_neighbours_allowance() -> None:
    gate = GossipLimits(lambda peer: True)
    long = 64 * BYTES_PER_UNIT
    taken = sum(gate.admits_frame(IDENTITY.peer, long, 0.0) for _ in range(FRAMES_AT_ONCE))
    assert taken == FRAMES_AT_ONCE // 65
    assert gate.admits_entries(IDENTITY.peer, 0, 0.0)
    assert not gate.admits_entries(IDENTITY.peer, 50, 0.0)


async def test_messages_are_not_kept_to_detect_equivocation() -> None:
    """Plain libp2p keeps up to 1,000 messages of 480 kB each to detect equivocation: two different
    messages with the same author and number."""
    async with gossiping() as gossip, networks(1) as (other,):
        await gossip.pubsub.subscribe(TOPIC)
        feed, _ = gossip.feed(TOPIC)
        await dial(gossip.pubsub.host, other)
        await heard(other, TOPIC, b"x", feed)
        assert gossip.router.equivocation_detection == {}


async def test_expired_backoff_times_of_departed_peers_are_forgotten() -> None:
    async with gossiping() as gossip:
        router = gossip.router
        peers = [ID.from_base58(identity(number).peer) for number in range(2, 4)]
        router.back_off[TOPIC] = {peers[0]: 1, peers[1]: 1 << 40}
        router.remove_peer(peers[0])
        assert router.back_off[TOPIC] == {peers[1]: 1 << 40}

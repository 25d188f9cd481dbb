"""A flood of gossip: only a bounded part is checked, and messages of honest peers still arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.network.stream.exceptions import StreamError
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.rpc_queue import DefaultMaxMessageSize
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX
from libp2p.utils.varint import encode_uvarint, encode_varint_prefixed

from p2ptrain.eviction import most_dispensable
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.net.feed import SharedFeed
from p2ptrain.net.gossip.limits import AT_ONCE, FRAMES_AT_ONCE, OTHERS_SHARE
from p2ptrain.net.gossip.pubsub import FEED_SIZE, PER_AUTHOR_MAX
from p2ptrain.net.room import Room

from .conftest import eventually, heard, identity, networks
from .hostile import IDENTITY, Hostile, hostile_to

MESHSUB = "/meshsub/1.1.0"
TOPIC = "heartbeats"
OTHERS_AT_ONCE = int(AT_ONCE * OTHERS_SHARE)
AUTHOR = identity(50)


def message(author: bytes, number: int, data: bytes = b"x" * 100) -> rpc_pb2.Message:
    return rpc_pb2.Message(
        from_id=author, data=data, topicIDs=[TOPIC], seqno=number.to_bytes(8, "big")
    )


def signed(host: Hostile, number: int) -> rpc_pb2.Message:
    made = message(host.host.get_id().to_bytes(), number)
    key = host.host.get_private_key()
    made.signature = key.sign(PUBSUB_SIGNING_PREFIX.encode() + made.SerializeToString())
    return made


def frame(*messages: rpc_pb2.Message) -> bytes:
    return bytes(encode_varint_prefixed(rpc_pb2.RPC(publish=messages).SerializeToString()))


def authors(messages: list[rpc_pb2.Message]) -> list[bytes]:
    return [message.from_id for message in messages]


def refused(victim: Network) -> int:
    count = victim.statistics()["gossip_refused"]
    assert isinstance(count, int)
    return count


@asynccontextmanager
async def attacked() -> AsyncIterator[tuple[Network, SharedFeed[bytes], Network, Hostile]]:
    """Yield a victim, its feed, an honest member, and a hostile peer that is not a member."""
    async with networks(2) as (victim, honest):
        victim.set_members([honest.peer])
        channel = victim.subscribe(TOPIC)
        await honest.connect(victim.addresses()[0])
        await heard(honest, TOPIC, b"first", channel)
        async with hostile_to(victim) as hostile:
            yield victim, channel, honest, hostile


async def test_messages_beyond_the_allowance_are_dropped_without_a_check(
    checked: list[rpc_pb2.Message],
) -> None:
    async with attacked() as (victim, channel, honest, hostile):
        stream = await hostile.open(MESHSUB)
        await stream.write(frame(*(signed(hostile, number) for number in range(900))))
        await eventually(lambda: refused(victim) > 0)
        await heard(honest, TOPIC, b"amid the flood", channel)
        author = hostile.host.get_id().to_bytes()
        await eventually(lambda: authors(checked).count(author) + refused(victim) == 900)
        # The allowance grows while the frame is processed.
        assert OTHERS_AT_ONCE <= authors(checked).count(author) < 1.2 * OTHERS_AT_ONCE
        assert victim.pop_floods() == {IDENTITY.peer: refused(victim)}
        assert victim.pop_floods() == {}


async def test_message_refused_from_one_neighbour_is_accepted_from_another() -> None:
    async with attacked() as (victim, channel, _, hostile):
        flood = [signed(hostile, number) for number in range(AT_ONCE)]
        async with hostile_to(victim, AUTHOR) as other:
            late = signed(other, 1)
            await (await hostile.open(MESHSUB)).write(frame(*flood, late))
            await eventually(lambda: refused(victim) > 0)
            await (await other.open(MESHSUB)).write(frame(late))
            with trio.fail_after(10):
                while (await channel.receive())[0] != AUTHOR.peer:
                    pass


async def test_oversized_peer_ids_are_not_converted_to_text(checked: list[rpc_pb2.Message]) -> None:
    """libp2p's base58 encoder takes a second for forty kilobytes, and its time grows with the
    square of the length."""
    async with attacked() as (victim, channel, honest, hostile):
        stream = await hostile.open(MESHSUB)
        endless = [message(b"\x01" * 40_000, 1), message(b"\x01" * 38, 1)]
        endless[1].seqno = bytes(1000)
        await stream.write(frame(*endless))
        await eventually(lambda: refused(victim) == 2)
        await heard(honest, TOPIC, b"at once", channel)
        assert hostile.host.get_id().to_bytes() not in authors(checked)
        assert victim.pop_floods() == {IDENTITY.peer: 2}


async def test_flood_of_empty_frames_is_refused_and_blocks_nobody() -> None:
    async with attacked() as (victim, channel, honest, hostile):
        stream = await hostile.open(MESHSUB)
        await stream.write(b"\x00" * 2 * FRAMES_AT_ONCE)
        await eventually(lambda: IDENTITY.peer in victim.pop_floods())
        await heard(honest, TOPIC, b"amid the frames", channel)


async def test_sender_of_an_oversized_frame_has_its_streams_reset() -> None:
    """Without the reset, the sender would stay in the mesh although its messages are no longer
    read."""
    async with attacked() as (_, channel, honest, hostile):
        at_hostile: list[INetStream] = []

        async def keep(stream: INetStream) -> None:
            at_hostile.append(stream)

        hostile.host.set_stream_handler(TProtocol(MESHSUB), keep)
        stream = await hostile.open(MESHSUB)
        await eventually(lambda: bool(at_hostile))
        await stream.write(encode_uvarint(DefaultMaxMessageSize + 1))
        for reset in (stream, at_hostile[0]):
            with trio.fail_after(10), pytest.raises(StreamError):
                while True:
                    await reset.read(1 << 10)
        await heard(honest, TOPIC, b"afterwards", channel)


class TestSharedFeed:
    async def test_peer_that_floods_a_feed_loses_only_its_own_messages(self) -> None:
        feed = SharedFeed[int](FEED_SIZE, PER_AUTHOR_MAX)
        liar, *honest = [identity(number).peer for number in range(1, 102)]
        for number, peer in enumerate(honest):
            feed.push(peer, number)
        for number in range(900):
            feed.push(liar, number)
        assert feed.lost == 900 - PER_AUTHOR_MAX
        waiting = [feed.receive_nowait() for _ in range(len(feed))]
        assert waiting[:100] == list(zip(honest, range(100), strict=True))
        assert waiting[100:] == [(liar, number) for number in range(900 - PER_AUTHOR_MAX, 900)]
        with pytest.raises(trio.WouldBlock):
            feed.receive_nowait()

    async def test_full_feed_drops_the_oldest_message_of_the_busiest_author(self) -> None:
        a, b, c = (PeerId(name) for name in "abc")
        feed = SharedFeed[int](4, 3)
        for author, value in ((a, 1), (b, 2), (b, 3), (b, 4), (c, 5), (c, 6), (a, 7)):
            feed.push(author, value)
        assert [feed.receive_nowait() for _ in range(4)] == [(a, 1), (b, 4), (c, 6), (a, 7)]
        assert feed.lost == 3

    async def test_waiting_reader_gets_the_newest_message_of_an_author(self) -> None:
        feed = SharedFeed[int](1, 1)
        heard: list[tuple[PeerId, int]] = []

        async def read() -> None:
            heard.append(await feed.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            feed.push(PeerId("a"), 1)
            feed.push(PeerId("a"), 2)
        assert (heard, len(feed), feed.lost) == ([(PeerId("a"), 2)], 0, 1)

    async def test_closed_feed_ends_its_reader(self) -> None:
        feed = SharedFeed[int](3, 3)
        await feed.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await feed.receive()


async def test_members_can_connect_when_the_limit_for_others_is_reached() -> None:
    async with networks(3, room=Room(others=1)) as (victim, first, member):
        victim.set_members([member.peer])
        await first.connect(victim.addresses()[0])
        async with hostile_to(victim):
            await eventually(lambda: victim.connected() == {first.peer})
            await member.connect(victim.addresses()[0])
            await eventually(lambda: victim.connected() == {first.peer, member.peer})


def test_peers_that_are_not_members_are_dropped_first() -> None:
    a, b, c = (PeerId(name) for name in "abc")
    assert most_dispensable((a, b, c), {a}.__contains__) == b
    assert most_dispensable((a, b), {a, b}.__contains__) == a

"""Gossip reaches admitted peers, is accepted only from admitted peers, and names its true
author."""

from __future__ import annotations

import pytest
import trio
from libp2p.peer import peer_record

from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.net import open_network
from p2ptrain.net.feed import Feed
from p2ptrain.net.gossip.frames import PAYLOAD_BYTES_MAX
from p2ptrain.net.gossip.pubsub import FEED_SIZE, PER_AUTHOR_MAX
from p2ptrain.net.room import Room

from .conftest import DEADLINE_S, LOOPBACK, echo, eventually, everybody, heard, identity, networks

TOPIC = "heartbeats"


async def test_published_message_arrives_with_its_author() -> None:
    async with networks(3) as (a, b, c):
        channels = [network.subscribe(TOPIC) for network in (a, b, c)]
        await b.connect(a.addresses()[0])
        await c.connect(a.addresses()[0])
        for channel in channels[1:]:
            await heard(a, TOPIC, b"from a", channel)
        # `b` and `c` know each other only through `a`.
        await heard(b, TOPIC, b"from b", channels[2])


async def test_publisher_does_not_receive_its_own_messages() -> None:
    async with networks(2) as (a, b):
        own, channel = a.subscribe(TOPIC), b.subscribe(TOPIC)
        await a.connect(b.addresses()[0])
        await heard(a, TOPIC, b"x", channel)
        with pytest.raises(trio.WouldBlock):
            own.receive_nowait()


async def test_largest_payload_arrives_and_a_larger_one_raises_an_error() -> None:
    async with networks(2) as (a, b):
        channel = b.subscribe(TOPIC)
        await a.connect(b.addresses()[0])
        payload = bytes(PAYLOAD_BYTES_MAX)
        await heard(a, TOPIC, payload, channel)
        with pytest.raises(LocalProtocolError):
            await a.publish(TOPIC, payload + b"x")


async def test_equal_payloads_arrive_each_time_they_are_published() -> None:
    async with networks(2) as (a, b):
        channel = b.subscribe(TOPIC)
        await a.connect(b.addresses()[0])
        await heard(a, TOPIC, b"first", channel)
        for _ in range(30):
            await a.publish(TOPIC, b"again")
        for _ in range(30):
            author, payload = await channel.receive()
            while payload == b"first":
                author, payload = await channel.receive()
            assert (author, payload) == (a.peer, b"again")


async def test_late_peer_receives_only_the_newest_message_of_each_author() -> None:
    async with networks(3) as (a, b, late):
        a.subscribe(TOPIC)
        at_b = b.subscribe(TOPIC)
        await b.connect(a.addresses()[0])
        await heard(a, TOPIC, b"begins", at_b)
        for number in range(10):
            await a.publish(TOPIC, b"old %d" % number)
        channel = late.subscribe(TOPIC)
        await late.connect(a.addresses()[0])
        first = [await channel.receive()]
        await a.publish(TOPIC, b"new")
        while first[-1] != (a.peer, b"new"):
            first.append(await channel.receive())
        assert first == [(a.peer, b"old 9"), (a.peer, b"new")]


async def test_gossip_works_after_a_restart_with_an_earlier_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each frame contains a signed record of its sender. If the record is older than the one that
    libp2p has stored for this peer, plain libp2p ignores the frame."""
    async with networks(1) as (a,):
        at_a = a.subscribe(TOPIC)
        for made_at in (10**18, 10**17):
            monkeypatch.setattr(peer_record, "timestamp_seq", lambda made_at=made_at: made_at)
            async with open_network(identity(5), listen=LOOPBACK, admitted=everybody) as b:
                at_b = b.subscribe(TOPIC)
                await b.connect(a.addresses()[0])
                await heard(b, TOPIC, b"from b, %d" % made_at, at_a)
                await heard(a, TOPIC, b"from a, %d" % made_at, at_b)
            await eventually(lambda: a.connected() == set())


async def test_all_messages_arrive_after_a_restart_with_the_same_identity() -> None:
    """Plain libp2p derives sequence numbers from the start time in whole seconds, so messages after
    a quick restart look like duplicates."""
    async with networks(1) as (a,):
        channel = a.subscribe(TOPIC)
        for start in range(3):
            async with open_network(identity(5), listen=[], admitted=everybody) as b:
                await b.connect(a.addresses()[0])
                await heard(b, TOPIC, b"ready", channel)
                payloads = [f"{start} {number}".encode() for number in range(25)]
                for payload in payloads:
                    await b.publish(TOPIC, payload)
                missing = set(payloads)  # gossip does not preserve order
                while missing:
                    missing.discard((await channel.receive())[1])


async def test_heartbeat_interval_stays_short_in_an_unhealthy_mesh() -> None:
    """libp2p considers a mesh unhealthy if it is small or its peers come and go. Plain libp2p then
    sends heartbeats, which repair the mesh and expire messages, only every 30 s."""
    async with networks(1) as (a,):
        router = a._gossip.router
        router.network_health_score = 0.0
        router._adapt_gossip_parameters()
        assert router.heartbeat_interval == 1


class TestAdmission:
    async def test_stranger_neither_sends_nor_receives_gossip(self) -> None:
        admitted: set[PeerId] = set()
        async with networks(3, [admitted.__contains__, everybody, everybody]) as (a, b, stranger):
            admitted.add(b.peer)
            at_a, at_b, at_stranger = (n.subscribe(TOPIC) for n in (a, b, stranger))
            await b.connect(a.addresses()[0])
            await stranger.connect(a.addresses()[0])
            for number in range(20):
                await stranger.publish(TOPIC, b"let me in")
                payload = str(number).encode()
                await heard(b, TOPIC, payload, at_a)
                await heard(a, TOPIC, payload, at_b)
            with pytest.raises(trio.WouldBlock):
                at_stranger.receive_nowait()
            assert a.statistics()["gossip_peers"] == [b.peer]

    async def test_strangers_messages_that_a_member_forwards_are_refused(self) -> None:
        admitted: set[PeerId] = set()
        async with networks(3, [admitted.__contains__, everybody, everybody]) as (a, b, stranger):
            admitted.add(b.peer)
            at_a, at_b = a.subscribe(TOPIC), b.subscribe(TOPIC)
            await b.connect(a.addresses()[0])
            await stranger.connect(b.addresses()[0])
            await heard(b, TOPIC, b"x", at_a)
            for number in range(5):
                await heard(stranger, TOPIC, f"stranger {number}".encode(), at_b)
            await b.publish(TOPIC, b"last")
            authors: set[PeerId] = set()
            payload = b""
            while payload != b"last":
                author, payload = await at_a.receive()
                authors.add(author)
            assert authors == {b.peer}

    async def test_number_of_waiting_strangers_is_bounded(self) -> None:
        admitted: set[PeerId] = set()
        gates = [admitted.__contains__, everybody, everybody]
        async with networks(3, gates, room=Room(waiting=1)) as (a, b, c):
            at_a = a.subscribe(TOPIC)
            for other in (b, c):
                await other.connect(a.addresses()[0])
                only = [other.peer]
                await eventually(lambda: a.statistics()["gossip_waiting"] == only)  # noqa: B023
            admitted.update((b.peer, c.peer))
            a.refresh_admission()
            # `c` took the only place, so the stream of `b` was closed; `b` reopens it.
            for other in (b, c):
                await heard(other, TOPIC, b"x", at_a)

    async def test_peer_admitted_later_sends_and_receives_gossip(self) -> None:
        admitted: set[PeerId] = set()
        async with networks(2, [admitted.__contains__, everybody]) as (a, b):
            at_a, at_b = a.subscribe(TOPIC), b.subscribe(TOPIC)
            await b.connect(a.addresses()[0])
            for _ in range(5):
                await b.publish(TOPIC, b"early")
                await a.publish(TOPIC, b"early")
            admitted.add(b.peer)
            a.refresh_admission()
            with trio.fail_after(DEADLINE_S):
                await heard(b, TOPIC, b"late", at_a)
                await heard(a, TOPIC, b"late", at_b)

    async def test_peers_exchange_gossip_as_soon_as_each_admits_the_other(self) -> None:
        """For example, a volunteer connects to a seed before it knows the run. It can decide which
        peers to admit only after the seed has sent it the run's manifest."""
        known_to_a: set[PeerId] = set()
        known_to_b: set[PeerId] = set()
        gates = [known_to_a.__contains__, known_to_b.__contains__]
        async with networks(2, gates) as (a, b):
            at_a, at_b = a.subscribe(TOPIC), b.subscribe(TOPIC)
            a.handle("/hello/1", echo, anyone=True)
            await b.connect(a.addresses()[0])
            assert await b.request(a.peer, "/hello/1", b"hello", deadline_s=DEADLINE_S) == b"hello"
            known_to_b.add(a.peer)
            b.refresh_admission()
            known_to_a.add(b.peer)
            a.refresh_admission()
            with trio.fail_after(DEADLINE_S):
                await heard(b, TOPIC, b"x", at_a)
                await heard(a, TOPIC, b"x", at_b)

    async def test_removed_peer_no_longer_sends_or_receives_gossip(self) -> None:
        admitted: set[PeerId] = set()
        async with networks(3, [admitted.__contains__, everybody, everybody]) as (a, b, c):
            admitted.update((b.peer, c.peer))
            at_a, at_b, at_c = (n.subscribe(TOPIC) for n in (a, b, c))
            for other in (b, c):
                await other.connect(a.addresses()[0])
                await heard(other, TOPIC, b"x", at_a)
            await heard(a, TOPIC, b"x", at_b)
            admitted.remove(b.peer)
            a.refresh_admission()
            at_others: list[bytes] = []
            for number in range(10):
                await b.publish(TOPIC, b"removed")
                payload = str(number).encode()
                at_others += await heard(c, TOPIC, payload, at_a)
                at_others += await heard(a, TOPIC, payload, at_c)
            assert b"removed" not in at_others
            while len(at_b):
                assert at_b.receive_nowait()[1] == b"x", (
                    "after its removal the peer received a new message"
                )


class TestFeed:
    async def test_full_feed_drops_and_counts_its_oldest_messages(self) -> None:
        feed: Feed[int] = Feed(3)
        for number in range(5):
            feed.push(number)
        assert [feed.receiver.receive_nowait() for _ in range(3)] == [2, 3, 4]
        assert feed.lost == 2

    async def test_messages_that_a_node_does_not_read_are_dropped_and_counted(self) -> None:
        async with networks(2) as (a, b):
            channel = b.subscribe(TOPIC)
            await a.connect(b.addresses()[0])
            await heard(a, TOPIC, b"first", channel)
            assert b.subscribe(TOPIC) is channel
            for number in range(FEED_SIZE + 5):
                channel.push(a.peer, str(number).encode())
            assert channel.lost >= FEED_SIZE + 5 - PER_AUTHOR_MAX
            assert b.statistics()["gossip_lost"] == {TOPIC: channel.lost}

    async def test_closed_feed_ends_its_reader(self) -> None:
        feed: Feed[int] = Feed(3)
        feed.push(1)
        feed.close()
        assert [number async for number in feed.receiver] == [1]

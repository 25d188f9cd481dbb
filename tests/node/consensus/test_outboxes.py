"""Each peer has its own queue of ledger messages, so a slow peer does not delay messages to other
peers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing

from p2ptrain.errors import LocalProtocolError, PeerTooSlow, PeerUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.node.consensus.outbox import PEERS_MAX, QUEUE_MESSAGES, Outboxes
from tests.node.rig import ANN, BOB, Rig, rig, settled


@asynccontextmanager
async def outboxes(folder: Path) -> AsyncIterator[tuple[Rig, Outboxes]]:
    async with rig(folder) as r, trio.open_nursery() as nursery:
        yield r, Outboxes(r.context, nursery)
        nursery.cancel_scope.cancel()


async def test_messages_arrive_in_order(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as (r, boxes):
        for number in range(5):
            boxes.post(ANN.peer, b"%d" % number)
        await settled(lambda: len(r.network.requested) == 5)
        assert r.network.requested == [(ANN.peer, b"%d" % number) for number in range(5)]


async def test_blocked_peer_does_not_delay_others_and_its_queue_is_bounded(
    tmp_path: Path,
) -> None:
    async with outboxes(tmp_path) as (r, boxes):
        stuck = trio.Event()

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            if peer == ANN.peer:
                await stuck.wait()
            return b""

        r.network.answer = answer
        for number in range(3 * QUEUE_MESSAGES):
            boxes.post(ANN.peer, b"%d" % number)
            if number % QUEUE_MESSAGES == 0:
                boxes.post(BOB.peer, b"%d" % number)
        await settled(lambda: [peer for peer, _ in r.network.requested].count(BOB.peer) == 3)
        assert [peer for peer, _ in r.network.requested].count(ANN.peer) == 1
        stuck.set()
        await settled(lambda: [p for p, _ in r.network.requested].count(ANN.peer) == QUEUE_MESSAGES)


async def test_peers_with_empty_queues_do_not_count_against_the_limit(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as (r, boxes):
        for number in range(PEERS_MAX):
            boxes.post(PeerId(f"stranger-{number}"), b"page")
        boxes.post(ANN.peer, b"no room")
        await settled(lambda: len(r.network.requested) == PEERS_MAX)
        boxes.post(ANN.peer, b"vote")
        await settled(lambda: r.network.requested[-1] == (ANN.peer, b"vote"))


async def test_lost_message_is_noted_once_and_the_next_one_is_tried(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as (r, boxes):

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            raise PeerTooSlow("no answer", peer=peer)

        r.network.answer = answer
        for number in range(20):
            boxes.post(ANN.peer, b"vote %d" % number)
        await settled(lambda: len(r.network.requested) == 20)
        assert len(r.said("message-lost")) == 1
        assert not r.context.ledger.refusals


async def test_repeated_message_is_queued_only_once(tmp_path: Path) -> None:
    """Here the peer takes a long time to answer. If repeated messages were queued again, they would
    delay all new messages more and more."""
    async with outboxes(tmp_path) as (r, boxes):
        goes_on = trio.Event()

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            await goes_on.wait()
            return b""

        r.network.answer = answer
        boxes.post(ANN.peer, b"round 0")
        await settled(lambda: len(r.network.requested) == 1)
        for _ in range(10):
            boxes.post(ANN.peer, b"round 0")
            boxes.post(ANN.peer, b"round 1")
        boxes.post(ANN.peer, b"round 2")
        goes_on.set()
        await settled(lambda: r.network.requested[-1] == (ANN.peer, b"round 2"))
        assert [said for _, said in r.network.requested] == [b"round 0", b"round 1", b"round 2"]
        boxes.post(ANN.peer, b"round 0")
        await settled(lambda: len(r.network.requested) == 4)


async def test_message_repeated_while_its_delivery_fails_is_tried_once_more(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as (r, boxes):
        repeated = trio.Event()

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            await repeated.wait()
            raise PeerTooSlow("no answer", peer=peer)

        r.network.answer = answer
        boxes.post(ANN.peer, b"vote")
        await settled(lambda: len(r.network.requested) == 1)
        boxes.post(ANN.peer, b"vote")
        repeated.set()
        boxes.post(ANN.peer, b"another")
        await settled(lambda: len(r.network.requested) == 3)
        await trio.testing.wait_all_tasks_blocked()
        assert [said for _, said in r.network.requested] == [b"vote", b"another", b"vote"]


async def test_refused_message_is_counted_as_a_refusal(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as (r, boxes):

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            raise PeerUnreachable("not admitted", peer=peer, code="PEER-REFUSED")

        r.network.answer = answer
        boxes.post(ANN.peer, b"vote")
        await settled(lambda: r.context.ledger.refusals)


async def test_announcement_too_long_for_gossip_is_dropped(
    tmp_path: Path,
) -> None:
    async with outboxes(tmp_path) as (r, boxes):
        r.network.refuses_to_publish = LocalProtocolError("too much for gossip")
        boxes.announce("topic", bytes(100_000))
        await settled(lambda: bool(r.said("not-announced")))
        r.network.refuses_to_publish = None
        boxes.announce("topic", b"short")
        await settled(lambda: r.network.published == [("topic", b"short")])


async def test_announcements_beyond_the_queue_are_dropped(tmp_path: Path) -> None:
    async with outboxes(tmp_path) as (r, boxes):
        for _ in range(3 * QUEUE_MESSAGES):
            boxes.announce("topic", b"x")
        await settled(lambda: len(r.network.published) == QUEUE_MESSAGES)

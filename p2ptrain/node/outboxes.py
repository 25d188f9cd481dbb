"""Ledger messages on their way out: one queue and one task a peer, so that a slow peer delays only
itself.

A queue is short and drops what does not fit; a message that cannot be delivered is lost. Both are
as if the network had lost it, which the ledger's own repetitions repair.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import trio

from p2ptrain.errors import LocalProtocolError, PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.parts import Parts
from p2ptrain.node.topics import LEDGER_PROTOCOL

QUEUE_MESSAGES = 64
"""Sixteen rounds of one height's four messages."""

SEND_S = 5.0
PEERS_MAX = 2048

Item = TypeVar("Item")


class Outboxes:
    """Tasks run in `nursery` until it is cancelled."""

    def __init__(self, parts: Parts, nursery: trio.Nursery) -> None:
        self._parts = parts
        self._nursery = nursery
        self._queues: dict[PeerId, trio.MemorySendChannel[bytes]] = {}
        announcements, to_announce = trio.open_memory_channel[tuple[str, bytes]](QUEUE_MESSAGES)
        self._announcements = announcements
        nursery.start_soon(self._announce_all, to_announce)

    def post(self, peer: PeerId, message: bytes) -> None:
        queue = self._queues.get(peer) or self._open(peer)
        if queue is not None:
            _put(queue, message)

    def announce(self, topic: str, message: bytes) -> None:
        _put(self._announcements, (topic, message))

    def _open(self, peer: PeerId) -> trio.MemorySendChannel[bytes] | None:
        if len(self._queues) >= PEERS_MAX:
            return None
        queue, to_send = trio.open_memory_channel[bytes](QUEUE_MESSAGES)
        self._queues[peer] = queue
        self._nursery.start_soon(self._send_all, peer, to_send)
        return queue

    async def _send_all(self, peer: PeerId, messages: trio.MemoryReceiveChannel[bytes]) -> None:
        async for message in messages:
            try:
                await self._parts.network.request(
                    peer, LEDGER_PROTOCOL, message, deadline_s=SEND_S, bytes_max=0
                )
            except (PeerError, RemoteProtocolError) as exc:
                self._parts.complain("message-lost", peer, reason=exc.what)
                if exc.code == "PEER-REFUSED":
                    self._parts.standing.refused = True

    async def _announce_all(
        self, announcements: trio.MemoryReceiveChannel[tuple[str, bytes]]
    ) -> None:
        async for topic, message in announcements:
            try:
                await self._parts.network.publish(topic, message)
            except LocalProtocolError as exc:
                # An entry of hundreds of members: whoever hears of its height asks for it.
                self._parts.complain("not-announced", topic, reason=exc.what)


def _put(queue: trio.MemorySendChannel[Item], item: Item) -> None:
    with suppress(trio.WouldBlock):
        queue.send_nowait(item)

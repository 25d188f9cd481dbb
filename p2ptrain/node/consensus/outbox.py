"""Send ledger messages. Each peer has a queue and a task, so a slow peer does not delay others.

A queue is short. A message that does not fit in the queue, or that cannot be delivered, is lost:
the ledger repeats its messages anyway. The first messages of a process wait until the process has
asked whether another one uses its identity (`state/first_question`).

If the ledger repeats a message that is still queued, the message is not queued again. Otherwise, if
each delivery takes seconds, repeated messages would fill the queue faster than they leave it. A new
message would then wait behind all of them, for longer than a round of voting lasts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import trio

from p2ptrain.errors import LocalProtocolError, PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import LEDGER_PROTOCOL

QUEUE_MESSAGES = 64
"""Capacity of a queue: enough for sixteen rounds of one height, with four messages each."""

SEND_S = 5.0
PEERS_MAX = 2048
"""Maximum number of peers with a queue at the same time. Messages to further peers are lost."""


@dataclass(slots=True)
class _Outbox:
    """The queue of one peer. `waiting` contains the queued messages and the message being sent. The
    value of each says whether the ledger has repeated the message since."""

    queue: trio.MemorySendChannel[bytes]
    waiting: dict[bytes, bool] = field(default_factory=dict)

    def enqueue(self, message: bytes) -> None:
        if message in self.waiting:
            self.waiting[message] = True
            return
        with suppress(trio.WouldBlock):
            self.queue.send_nowait(message)
            self.waiting[message] = False

    def note_sent(self, message: bytes, *, arrived: bool) -> None:
        """Remove a message after an attempt to send it. If it did not arrive and the ledger has
        repeated it, queue it again."""
        said_again = self.waiting.pop(message)
        if said_again and not arrived:
            self.enqueue(message)


class Outboxes:
    """The queues of all peers. Their tasks run in `nursery` until it is cancelled."""

    def __init__(self, context: Context, nursery: trio.Nursery) -> None:
        self._context = context
        self._nursery = nursery
        self._boxes: dict[PeerId, _Outbox] = {}
        announcements, to_announce = trio.open_memory_channel[tuple[str, bytes]](QUEUE_MESSAGES)
        self._announcements = announcements
        nursery.start_soon(self._announce_all, to_announce)

    @property
    def count(self) -> int:
        """The number of peers to which messages are queued or being sent."""
        return len(self._boxes)

    def post(self, peer: PeerId, message: bytes) -> None:
        box = self._boxes.get(peer) or self._open(peer)
        if box is not None:
            box.enqueue(message)

    def announce(self, topic: str, message: bytes) -> None:
        with suppress(trio.WouldBlock):
            self._announcements.send_nowait((topic, message))

    def _open(self, peer: PeerId) -> _Outbox | None:
        if len(self._boxes) >= PEERS_MAX:
            return None
        queue, to_send = trio.open_memory_channel[bytes](QUEUE_MESSAGES)
        box = self._boxes[peer] = _Outbox(queue)
        self._nursery.start_soon(self._send_all, peer, box, to_send)
        return box

    async def _send_all(
        self, peer: PeerId, box: _Outbox, messages: trio.MemoryReceiveChannel[bytes]
    ) -> None:
        """Send messages until the queue is empty, then delete the queue. Empty queues are not kept,
        because anybody can create new peer ids in an open run."""
        with suppress(trio.WouldBlock):
            while True:
                message = messages.receive_nowait()
                box.note_sent(message, arrived=await self._arrives(peer, message))
        del self._boxes[peer]

    async def _arrives(self, peer: PeerId, message: bytes) -> bool:
        try:
            if not await self._may_speak(peer):
                return False
            await forwarding.request(
                self._context, peer, LEDGER_PROTOCOL, message, deadline_s=SEND_S, bytes_max=0
            )
        except (PeerError, RemoteProtocolError) as exc:
            self._context.peers.report_misbehaviour("message-lost", peer, reason=exc.what)
            if exc.code == "PEER-REFUSED":
                self._context.ledger.refusals += 1
            return False
        return True

    async def _may_speak(self, peer: PeerId) -> bool:
        """Wait until this process has asked whether another one uses its identity. Return False if
        it has found one: then no message may be sent.

        Raises PeerError: `peer` cannot be connected."""
        network, identities = self._context.network, self._context.identities
        if identities.first_question.is_over:
            return True
        if peer not in network.connected():
            await network.connect_peer(peer, deadline_s=SEND_S)
        identities.watch.ask_soon(self._context.now())
        identities.news.notify_all()
        await identities.first_question.until_over()
        return identities.watch.duplicate is None

    async def _announce_all(
        self, announcements: trio.MemoryReceiveChannel[tuple[str, bytes]]
    ) -> None:
        async for topic, message in announcements:
            try:
                await self._context.network.publish(topic, message)
            except LocalProtocolError as exc:
                # The entry is too large because it names hundreds of members. Peers that hear of
                # its height request it instead.
                self._context.peers.report_misbehaviour("not-announced", topic, reason=exc.what)

"""The stream of server-sent events: a bounded number of clients, each with a bounded queue.

A client that does not read is dropped: its queue is full before long, and its connection does not
accept more bytes (`listener`). Nothing is ever kept for a client that has been dropped. All events
of a connection are compressed as one gzip stream, so that a state costs little more than what has
changed since the last one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

CLIENTS_MAX = 32
"""Maximum number of clients. Each costs about 300 kB, most of it for compression."""

QUEUE_MAX = 16
"""Maximum number of pieces that wait for one client: the news of several seconds."""

BEAT_S = 5.0
"""Seconds of silence after which a comment is sent, so that a dead connection is noticed."""

BEAT = b": still here\n\n"
RETRY = b"retry: 3000\n\n"
_GZIP = 31


def event(name: str, data: str) -> bytes:
    """Return the bytes of an event. `data` is JSON, which has no line breaks."""
    return f"event: {name}\ndata: {data}\n\n".encode()


@dataclass(eq=False, slots=True)
class Client:
    """One reader of the stream."""

    _sender: trio.MemorySendChannel[bytes]
    receiver: trio.MemoryReceiveChannel[bytes]

    @classmethod
    def new(cls) -> Client:
        return cls(*trio.open_memory_channel[bytes](QUEUE_MAX))

    def offer(self, data: bytes) -> bool:
        """Queue an event. Return False, and close the queue, if the client is too slow."""
        try:
            self._sender.send_nowait(data)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            self.close()
            return False
        return True

    def close(self) -> None:
        self._sender.close()
        self.receiver.close()


@dataclass(slots=True)
class Clients:
    """All readers of the stream."""

    clients_max: int = CLIENTS_MAX
    arrived: trio.Event = field(default_factory=trio.Event)
    """Set when a client comes, and replaced when all have gone."""
    _clients: set[Client] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._clients)

    def enter(self) -> Client | None:
        """Return a new client; None if there are too many."""
        if len(self._clients) >= self.clients_max:
            return None
        client = Client.new()
        self._clients.add(client)
        self.arrived.set()
        return client

    def leave(self, client: Client) -> None:
        client.close()
        self._clients.discard(client)
        if not self._clients:
            self.arrived = trio.Event()

    def offer(self, data: bytes) -> None:
        """Queue an event for every client, and drop those that are too slow."""
        for client in list(self._clients):
            if not client.offer(data):
                self.leave(client)


class Compression:
    """Compresses a stream of events. Each piece can be read at once."""

    def __init__(self) -> None:
        self._state = zlib.compressobj(6, zlib.DEFLATED, _GZIP)

    def __call__(self, data: bytes) -> bytes:
        return self._state.compress(data) + self._state.flush(zlib.Z_SYNC_FLUSH)


class EventStream(Response):
    """The answer to a client. `leave` is called when the client is gone."""

    def __init__(
        self, client: Client, first: bytes, *, compressed: bool, leave: Callable[[Client], None]
    ) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if compressed:
            headers["content-encoding"] = "gzip"
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._client = client
        self._first = first
        self._encode: Callable[[bytes], bytes] = Compression() if compressed else bytes
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
                await self._send_events(send)
                nursery.cancel_scope.cancel()
        finally:
            self._leave(self._client)

    async def _send_events(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        data = RETRY + self._first
        while data:
            body = {"type": "http.response.body", "body": self._encode(data), "more_body": True}
            await send(body)
            data = await self._next()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes:
        """Return the next event, or a comment after a silence; b"" if this client was dropped."""
        data = BEAT
        with trio.move_on_after(BEAT_S):
            data = await self._received()
        return data

    async def _received(self) -> bytes:
        try:
            return await self._client.receiver.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            return b""


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()

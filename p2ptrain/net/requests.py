"""Send a request and receive its reply, over streams that are kept open for later requests.

Opening a stream takes two round trips, too long for frequent messages such as votes. Each side
limits what it reads and how long it waits. In both directions a message is a u32 length followed by
that many bytes; the first byte of a reply is its status.

If a write is cancelled, libp2p can no longer use the connection. So an exchange runs to completion
in its own task, even if its caller is cancelled. If a write gets stuck, we close the connection.
"""

from __future__ import annotations

import enum
import logging
import struct
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import StreamFailure
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamEOF, StreamError
from libp2p.peer.id import ID

from p2ptrain.errors import (
    LocalProtocolError,
    NotAuthorised,
    P2PTrainError,
    PeerError,
    PeerLost,
    PeerTooSlow,
    PeerUnreachable,
    RemoteProtocolError,
    reason_of,
)
from p2ptrain.ids import PeerId
from p2ptrain.net.host.hardening import is_open, sever
from p2ptrain.net.host.health_checks import shielded_for

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 1 << 20
"""Maximum bytes of a request. Bulk data uses the data plane; a longer write would delay other
requests on this connection."""
IN_FLIGHT_PER_PEER_MAX = 64
STREAMS_PER_PEER_MAX = 32
"""Maximum number of open streams from one peer to our handlers."""
IDLE_STREAMS_MAX = 4
REUSE_S = 20.0
IDLE_S = 60.0
"""The answering side closes an idle stream after IDLE_S seconds. The requesting side reuses a
stream for up to REUSE_S seconds only, so it does not send a request on a stream that is closing."""
OPEN_S = 8.0
"""Seconds in which a stream must open. It is less than libp2p's own limit, after which libp2p would
report a failure without closing the connection."""
WRITE_S = 10.0
BODY_S = 15.0
HANDLER_S = 30.0
LINGER_S = 1.0
REASON_BYTES_MAX = 400

_LENGTH = struct.Struct(">I")
_GONE = (StreamFailure, SwarmException, StreamError, StreamEOF)

Handler = Callable[[PeerId, bytes], Awaitable[bytes]]


class ReplyStatus(enum.IntEnum):
    """The first byte of a reply."""

    OK = 0
    REFUSED = 1
    MALFORMED = 2
    FAILED = 3


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the answering side waits for a request to begin, for its end, and for the
    handler."""

    idle_s: float = IDLE_S
    body_s: float = BODY_S
    handler_s: float = HANDLER_S


WAITS = Waits()
"""The limits of a protocol that does not set its own."""


@dataclass(frozen=True, slots=True)
class Service:
    """The handler of a protocol. `bytes_max` is the maximum length of a request. With `anyone`,
    peers that are not admitted may send requests too."""

    handler: Handler
    bytes_max: int
    anyone: bool
    waits: Waits = WAITS


@dataclass(slots=True)
class _PendingRequest:
    """One request in progress. `done` is set once `reply` or `error` has been set."""

    peer: PeerId
    protocol: str
    payload: bytes
    ends: float
    bytes_max: int
    done: trio.Event
    stage: str = "not started"
    reply: bytes = b""
    error: P2PTrainError | None = None


async def open_stream(
    host: IHost, peer: PeerId, protocol: str, open_s: float = OPEN_S
) -> INetStream:
    """Open a stream to a connected peer. A cancellation takes effect only after the stream is open
    or has failed. Raises PeerUnreachable or PeerTooSlow."""
    with shielded_for(open_s) as opening:
        try:
            stream = await host.new_stream(ID.from_base58(peer), [TProtocol(protocol)])
        except _GONE as exc:
            raise PeerUnreachable(f"could not open a stream: {reason_of(exc)}", peer=peer) from exc
    if opening.cancelled_caught:
        await sever(host, ID.from_base58(peer))
        raise PeerTooSlow(
            "it did not open a stream in time; this node closed the connection", peer=peer
        )
    return stream


async def write_all(
    host: IHost, stream: INetStream, peer: PeerId, payload: bytes, write_s: float = WRITE_S
) -> bool:
    """Write `payload`. If the peer does not accept the data in time, close the connection and
    return False."""
    with shielded_for(write_s) as writing:
        await stream.write(payload)
    if writing.cancelled_caught:
        await sever(host, ID.from_base58(peer))
    return not writing.cancelled_caught


class Requester:
    """The requesting side. `nursery` outlives every request. A connection is closed if opening a
    stream takes longer than `open_s`, or a write takes longer than `write_s`."""

    def __init__(
        self,
        host: IHost,
        nursery: trio.Nursery,
        *,
        open_s: float = OPEN_S,
        write_s: float = WRITE_S,
    ) -> None:
        self._host = host
        self._nursery = nursery
        self._open_s = open_s
        self._write_s = write_s
        self._idle: dict[tuple[PeerId, str], list[tuple[float, INetStream]]] = defaultdict(list)
        self._in_flight: Counter[PeerId] = Counter()

    async def request(
        self, peer: PeerId, protocol: str, payload: bytes, *, deadline_s: float, bytes_max: int
    ) -> bytes:
        """Return the reply of `peer`, which must be connected.

        If a reused stream breaks before the reply, the request is sent again on a new stream, so a
        handler may see it twice.

        Raises:
            PeerTooSlow, PeerUnreachable, PeerLost, RemoteProtocolError.
        """
        if len(payload) > REQUEST_BYTES_MAX:
            raise LocalProtocolError(f"a request of {len(payload)} bytes is too long")
        if self._in_flight[peer] >= IN_FLIGHT_PER_PEER_MAX:
            raise PeerTooSlow("too many requests to this peer are already waiting", peer=peer)
        ends = trio.current_time() + deadline_s
        exchange = _PendingRequest(peer, protocol, payload, ends, bytes_max, trio.Event())
        self._in_flight[peer] += 1
        self._nursery.start_soon(self._run, exchange)
        with trio.move_on_at(ends):
            await exchange.done.wait()
        if not exchange.done.is_set():
            words = f"no reply within {deadline_s:.1f} s: {exchange.stage}"
            raise PeerTooSlow(words, peer=peer)
        if exchange.error is not None:
            raise exchange.error
        return exchange.reply

    def forget(self, peer: PeerId) -> None:
        """Drop the streams of `peer`, which has disconnected."""
        for key in [key for key in self._idle if key[0] == peer]:
            del self._idle[key]

    async def _run(self, exchange: _PendingRequest) -> None:
        peer = exchange.peer
        try:
            exchange.reply = await self._converse(exchange)
        except (PeerError, RemoteProtocolError) as exc:
            exchange.error = exc
        except _GONE as exc:
            exchange.error = PeerLost(f"the stream broke: {reason_of(exc)}", peer=peer)
        except Exception as exc:
            log.debug("a request to %s failed: %r", peer, exc)
            exchange.error = PeerLost(f"libp2p failed: {reason_of(exc)}", peer=peer)
        finally:
            self._in_flight[peer] -= 1
            if not self._in_flight[peer]:
                del self._in_flight[peer]
            exchange.done.set()

    async def _converse(self, exchange: _PendingRequest) -> bytes:
        kept = self._pop_idle(exchange.peer, exchange.protocol)
        if kept is not None:
            with suppress(*_GONE):
                return await self._ask(kept, exchange, "on a reused stream")
            exchange.stage = "closing a reused stream that broke"
            await _reset(kept)
        exchange.stage = "opening a stream"
        stream = await open_stream(self._host, exchange.peer, exchange.protocol, self._open_s)
        return await self._ask(stream, exchange, "on a new stream")

    async def _ask(self, stream: INetStream, exchange: _PendingRequest, where: str) -> bytes:
        peer = exchange.peer
        exchange.stage = f"sending {where}"
        framed = _LENGTH.pack(len(exchange.payload)) + exchange.payload
        if not await write_all(self._host, stream, peer, framed, self._write_s):
            raise PeerTooSlow(
                "it did not accept the data in time; this node closed the connection", peer=peer
            )
        exchange.stage = f"sent {where}"
        with trio.move_on_at(exchange.ends) as reading:
            frame = await _read_frame(stream, exchange.bytes_max + 1, peer)
        if reading.cancelled_caught:
            await _reset(stream)
            raise PeerTooSlow("no reply in time", peer=peer)
        return await self._judge(stream, exchange, frame)

    async def _judge(self, stream: INetStream, exchange: _PendingRequest, frame: bytes) -> bytes:
        """Return the reply in `frame`, or raise the error that it reports."""
        peer = exchange.peer
        if frame[:1] == bytes([ReplyStatus.OK]):
            self._keep_idle(peer, exchange.protocol, stream)
            return frame[1:]
        await _reset(stream)
        reason = ascii(frame[1 : 1 + REASON_BYTES_MAX].decode("utf-8", "replace"))
        if frame[:1] == bytes([ReplyStatus.REFUSED]):
            raise PeerUnreachable(f"it refused: {reason}", peer=peer, code="PEER-REFUSED")
        if frame[:1] == bytes([ReplyStatus.FAILED]):
            raise PeerUnreachable(f"it could not answer: {reason}", peer=peer, code="PEER-FAILED")
        raise RemoteProtocolError(f"it reports that our request is malformed: {reason}", peer=peer)

    def _pop_idle(self, peer: PeerId, protocol: str) -> INetStream | None:
        idle = self._idle.get((peer, protocol), [])
        oldest_s = trio.current_time() - REUSE_S
        while idle:
            since, stream = idle.pop()
            if since >= oldest_s and is_open(stream):
                return stream
            self._nursery.start_soon(_reset, stream)
        return None

    def _keep_idle(self, peer: PeerId, protocol: str, stream: INetStream) -> None:
        idle = self._idle[peer, protocol]
        if len(idle) < IDLE_STREAMS_MAX:
            idle.append((trio.current_time(), stream))
        else:
            self._nursery.start_soon(_reset, stream)


class Responder:
    """The answering side."""

    def __init__(self, host: IHost, admitted: Callable[[PeerId], bool]) -> None:
        self._host = host
        self._admitted = admitted
        self._streams: Counter[PeerId] = Counter()
        self._streams_opened = 0

    def statistics(self) -> dict[str, int]:
        """Return how many streams peers have opened to our handlers, and how many are open now."""
        return {
            "streams_opened": self._streams_opened,
            "streams_open": self._streams.total(),
        }

    def handle(self, protocol: str, service: Service) -> None:
        async def serve(stream: INetStream) -> None:
            await self._serve(stream, service)

        self._host.set_stream_handler(TProtocol(protocol), serve)

    async def _serve(self, stream: INetStream, service: Service) -> None:
        """Answer the requests of one stream until it ends."""
        peer = PeerId(str(stream.muxed_conn.peer_id))
        if self._streams[peer] >= STREAMS_PER_PEER_MAX:
            await _reset(stream)
            return
        self._streams[peer] += 1
        self._streams_opened += 1
        try:
            while await self._serve_one(stream, peer, service):
                pass
        except (*_GONE, P2PTrainError) as exc:
            log.debug("a request from %s failed: %r", peer, exc)
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]
            await _finish(stream)

    async def _serve_one(self, stream: INetStream, peer: PeerId, service: Service) -> bool:
        """Answer one request; return False if the stream should end."""
        with trio.move_on_after(service.waits.idle_s) as idle:
            header = await _read_exactly(stream, _LENGTH.size)
        if idle.cancelled_caught:
            return False
        (length,) = _LENGTH.unpack(header)
        if length > service.bytes_max:
            words = f"the request has {length} bytes, more than the limit of {service.bytes_max}"
            await self._reply(stream, peer, ReplyStatus.MALFORMED, words.encode())
            return False
        with trio.move_on_after(service.waits.body_s) as late:
            payload = await _read_exactly(stream, length)
        if late.cancelled_caught:
            return False
        status, reply = await self._answer(peer, service, payload)
        return await self._reply(stream, peer, status, reply)

    async def _answer(
        self, peer: PeerId, service: Service, payload: bytes
    ) -> tuple[ReplyStatus, bytes]:
        if not (service.anyone or self._admitted(peer)):
            return ReplyStatus.REFUSED, b"you are not admitted to this run"
        try:
            with trio.fail_after(service.waits.handler_s):
                return ReplyStatus.OK, await service.handler(peer, payload)
        except RemoteProtocolError as exc:
            return ReplyStatus.MALFORMED, exc.what.encode()
        except NotAuthorised as exc:
            return ReplyStatus.REFUSED, exc.what.encode()
        except P2PTrainError as exc:
            return ReplyStatus.FAILED, exc.what.encode()
        except Exception as exc:
            log.exception("a handler failed on a request from %s", peer)
            return ReplyStatus.FAILED, type(exc).__name__.encode()

    async def _reply(
        self, stream: INetStream, peer: PeerId, status: ReplyStatus, payload: bytes
    ) -> bool:
        body = payload if status is ReplyStatus.OK else payload[:REASON_BYTES_MAX]
        frame = _LENGTH.pack(1 + len(body)) + bytes([status]) + body
        return await write_all(self._host, stream, peer, frame)


async def _read_frame(stream: INetStream, bytes_max: int, peer: PeerId) -> bytes:
    (length,) = _LENGTH.unpack(await _read_exactly(stream, _LENGTH.size))
    if length > bytes_max:
        await _reset(stream)
        raise RemoteProtocolError(
            f"it announced a reply of {length} bytes, more than the limit of {bytes_max}", peer=peer
        )
    return await _read_exactly(stream, length)


async def _read_exactly(stream: INetStream, count: int) -> bytes:
    """Read `count` bytes. One read of libp2p may return fewer. Raises StreamEOF at the stream's
    end."""
    pieces = bytearray()
    while len(pieces) < count:
        pieces += await stream.read(count - len(pieces))
    return bytes(pieces)


async def _finish(stream: Any) -> None:
    """End `stream` so that a reply in transit still arrives. An immediate reset would discard the
    reply."""
    with shielded_for(LINGER_S), suppress(Exception):
        await stream.close_write()
        while True:
            await stream.read(1 << 16)
    with shielded_for(LINGER_S):
        await _reset(stream)


async def _reset(stream: INetStream) -> None:
    with suppress(Exception):
        await stream.reset()

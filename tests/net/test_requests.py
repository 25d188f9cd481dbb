"""Every request ends in time with a reply or a named error, whatever the other side does."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import StreamFailure
from libp2p.io.exceptions import IOException
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.id import ID

from p2ptrain.errors import (
    LocalProtocolError,
    NotAuthorised,
    PeerError,
    PeerLost,
    PeerTooSlow,
    PeerUnreachable,
    RemoteProtocolError,
    TryLater,
)
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.net.host.hardening import build_host, running
from p2ptrain.net.requests import (
    IN_FLIGHT_PER_PEER_MAX,
    STREAMS_PER_PEER_MAX,
    Requester,
    Waits,
)

from .conftest import (
    DEADLINE_S,
    LOOPBACK,
    echo,
    eventually,
    everybody,
    host_of,
    identity,
    networks,
)
from .hostile import dial

P = "/test/1"


@asynccontextmanager
async def connected_pair(
    admitted: Callable[[PeerId], bool] = everybody,
) -> AsyncIterator[tuple[Network, Network]]:
    """Yield a peer that asks and a peer that answers. `admitted` decides which peers the second
    peer admits."""
    async with networks(2, [everybody, admitted]) as (asks, answers):
        await asks.connect(answers.addresses()[0])
        yield asks, answers


@asynccontextmanager
async def raw_host(target: Network | None = None) -> AsyncIterator[IHost]:
    """Run a bare host for a hostile peer. If `target` is given, connect the host to it."""
    host = build_host(identity(99), announce=[], mdns=False)
    async with running(host, list(LOOPBACK)):
        if target is not None:
            await dial(host, target)
        yield host


async def open_raw(host: IHost, target: Network) -> INetStream:
    return await host.new_stream(ID.from_base58(target.peer), [TProtocol(P)])


async def read_all(stream: INetStream) -> bytes:
    """Return everything that arrives until the other side ends the stream."""
    heard = b""
    while True:
        try:
            heard += await stream.read(1 << 16)
        except StreamError:
            return heard


def streams(answers: Network) -> dict[str, int]:
    """Return how many streams have been opened to the handlers of `answers`, and how many are open
    now."""
    statistics = answers.statistics()
    return {each: int(str(statistics[f"streams_{each}"])) for each in ("opened", "open")}


async def test_handler_gets_the_request_and_its_reply_arrives() -> None:
    async with connected_pair() as (asks, answers):

        async def greet(peer: PeerId, payload: bytes) -> bytes:
            return peer.encode() + payload

        answers.handle(P, greet)
        reply = await asks.request(answers.peer, P, b"hello", deadline_s=DEADLINE_S)
        assert reply == asks.peer.encode() + b"hello"


@pytest.mark.parametrize("size", [0, 1, 65_536, 1 << 20])
async def test_requests_of_every_size_arrive_complete(size: int) -> None:
    async with connected_pair() as (asks, answers):
        answers.handle(P, echo, bytes_max=1 << 20)
        payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert await asks.request(answers.peer, P, payload, deadline_s=DEADLINE_S) == payload


async def test_each_of_many_simultaneous_requests_gets_its_own_reply() -> None:
    async with connected_pair() as (asks, answers):
        answers.handle(P, echo)
        replies: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            payload = str(number).encode()
            replies[number] = await asks.request(answers.peer, P, payload, deadline_s=DEADLINE_S)

        for start in (0, 25, 50, 75):
            async with trio.open_nursery() as nursery:
                for number in range(start, start + 25):
                    nursery.start_soon(ask, number)
        assert replies == {number: str(number).encode() for number in range(100)}


async def test_requests_beyond_the_limit_are_refused_locally() -> None:
    async with connected_pair() as (asks, answers):
        free = trio.Event()

        async def waits(peer: PeerId, payload: bytes) -> bytes:
            await free.wait()
            return b""

        answers.handle(P, waits)
        outcomes: list[type] = []

        async def ask() -> None:
            try:
                await asks.request(answers.peer, P, b"", deadline_s=DEADLINE_S)
                outcomes.append(bytes)
            except PeerError as exc:
                outcomes.append(type(exc))
            if len(outcomes) == 6:
                free.set()

        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT_PER_PEER_MAX + 6):
                nursery.start_soon(ask)
        assert outcomes[:6] == [PeerTooSlow] * 6
        # The other side serves as many streams as it allows and resets the rest.
        assert outcomes.count(bytes) >= STREAMS_PER_PEER_MAX
        assert await asks.request(answers.peer, P, b"", deadline_s=DEADLINE_S) == b""


async def test_streams_are_reused() -> None:
    async with connected_pair() as (asks, answers):
        answers.handle(P, echo)
        for _ in range(20):
            await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S)
        assert streams(answers) == {"opened": 1, "open": 1}


async def test_broken_idle_stream_is_replaced() -> None:
    async with connected_pair() as (asks, answers):
        answers.handle(P, echo)
        for opened in range(1, 4):
            assert await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S) == b"x"
            assert streams(answers)["opened"] == opened
            for connection in host_of(answers).get_network().get_connections():
                for stream in connection.get_streams():
                    if stream.get_protocol() == P:
                        await stream.reset()


async def test_request_dials_a_remembered_peer() -> None:
    async with networks(2) as (asks, answers):
        answers.handle(P, echo)
        asks.remember(answers.peer, answers.addresses())
        assert await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S) == b"x"


async def test_request_to_an_unknown_peer_raises_peer_unreachable() -> None:
    async with networks(1) as (asks,):
        with pytest.raises(PeerUnreachable):
            await asks.request(identity(7).peer, P, b"x", deadline_s=DEADLINE_S)


async def test_unsupported_protocol_raises_peer_unreachable() -> None:
    async with connected_pair() as (asks, answers):
        with pytest.raises(PeerUnreachable) as caught:
            await asks.request(answers.peer, "/unknown/1", b"x", deadline_s=DEADLINE_S)
        assert caught.value.peer == answers.peer


class TestAdmission:
    async def test_peer_that_is_not_admitted_is_refused(self) -> None:
        async with connected_pair(lambda peer: False) as (asks, answers):
            called: list[PeerId] = []

            async def note(peer: PeerId, payload: bytes) -> bytes:
                called.append(peer)
                return b""

            answers.handle(P, note)
            with pytest.raises(PeerUnreachable, match="not admitted") as caught:
                await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S)
            assert caught.value.code == "PEER-REFUSED"
            assert called == []

    async def test_public_protocol_answers_strangers(self) -> None:
        async with connected_pair(lambda peer: False) as (asks, answers):
            answers.handle(P, echo, anyone=True)
            assert await asks.request(answers.peer, P, b"hello", deadline_s=DEADLINE_S) == b"hello"

    async def test_admission_is_checked_for_every_request(self) -> None:
        allowed: set[PeerId] = set()
        async with connected_pair(allowed.__contains__) as (asks, answers):
            answers.handle(P, echo)
            with pytest.raises(PeerUnreachable):
                await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S)
            allowed.add(asks.peer)
            assert await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S) == b"x"
            allowed.clear()
            with pytest.raises(PeerUnreachable):
                await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S)


class TestHandlers:
    @pytest.mark.parametrize(
        ("raised", "expected", "code"),
        [
            (RemoteProtocolError("no vote"), RemoteProtocolError, "PEER-PROTOCOL"),
            (NotAuthorised("not on the list"), PeerUnreachable, "PEER-REFUSED"),
            (TryLater("busy"), PeerUnreachable, "PEER-FAILED"),
            (ValueError("bug"), PeerUnreachable, "PEER-FAILED"),
            (StreamError("looks like a hang-up"), PeerUnreachable, "PEER-FAILED"),
            (trio.TooSlowError(), PeerUnreachable, "PEER-FAILED"),
        ],
    )
    async def test_exception_in_a_handler_is_reported_to_the_peer_that_asked(
        self, raised: Exception, expected: type[Exception], code: str
    ) -> None:
        async with connected_pair() as (asks, answers):

            async def fails(peer: PeerId, payload: bytes) -> bytes:
                raise raised

            answers.handle(P, fails)
            answers.handle("/test/2", echo)
            with pytest.raises(expected) as caught:
                await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S)
            assert caught.value.code == code  # type: ignore[attr-defined]
            assert caught.value.peer == answers.peer  # type: ignore[attr-defined]
            assert await asks.request(answers.peer, "/test/2", b"x", deadline_s=DEADLINE_S) == b"x"

    async def test_hanging_handler_is_cancelled(self) -> None:
        async with connected_pair() as (asks, answers):

            async def hangs(peer: PeerId, payload: bytes) -> bytes:
                await trio.sleep_forever()
                return b""

            answers.handle(P, hangs, waits=Waits(handler_s=0.05))
            with pytest.raises(PeerUnreachable) as caught:
                await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S)
            assert caught.value.code == "PEER-FAILED"

    async def test_slow_handler_is_not_waited_for_beyond_the_deadline(self) -> None:
        async with connected_pair() as (asks, answers):

            async def hangs(peer: PeerId, payload: bytes) -> bytes:
                await trio.sleep_forever()
                return b""

            answers.handle(P, hangs)
            answers.handle("/test/2", echo)
            with pytest.raises(PeerTooSlow):
                await asks.request(answers.peer, P, b"x", deadline_s=0.1)
            assert await asks.request(answers.peer, "/test/2", b"x", deadline_s=DEADLINE_S) == b"x"


class TestOversize:
    async def test_request_too_long_to_send_raises_local_protocol_error(self) -> None:
        async with connected_pair() as (asks, answers):
            with pytest.raises(LocalProtocolError):
                await asks.request(answers.peer, P, bytes((1 << 20) + 1), deadline_s=DEADLINE_S)

    async def test_request_longer_than_the_handlers_limit_is_refused(self) -> None:
        async with connected_pair() as (asks, answers):
            answers.handle(P, echo, bytes_max=100)
            with pytest.raises(RemoteProtocolError, match="101 bytes"):
                await asks.request(answers.peer, P, bytes(101), deadline_s=DEADLINE_S)
            assert await asks.request(answers.peer, P, bytes(100), deadline_s=DEADLINE_S) == bytes(
                100
            )

    async def test_reply_longer_than_allowed_is_refused(self) -> None:
        async with connected_pair() as (asks, answers):
            answers.handle(P, echo)
            with pytest.raises(RemoteProtocolError) as caught:
                await asks.request(answers.peer, P, bytes(100), deadline_s=DEADLINE_S, bytes_max=99)
            assert caught.value.peer == answers.peer
            assert await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S) == b"x"


class TestHostileClient:
    """Requests of a host that speaks libp2p correctly, but violates our own protocol."""

    @pytest.mark.parametrize(
        "sent",
        [
            b"",
            b"\x00",
            b"\xff\xff\xff\xff",
            struct.pack(">I", 100) + b"half",
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(range(256)) * 300,
        ],
        ids=["nothing", "a byte", "4 GiB", "half", "http", "much"],
    )
    async def test_arbitrary_input_does_not_stop_the_node(self, sent: bytes) -> None:
        async with connected_pair() as (asks, answers), raw_host(answers) as hostile:
            answers.handle(P, echo, bytes_max=1000, waits=Waits(idle_s=0.1, body_s=0.1))
            stream = await open_raw(hostile, answers)
            if sent:
                with suppress(StreamError):  # The stream may have ended already.
                    await stream.write(sent)
            await read_all(stream)
            await eventually(lambda: streams(answers)["open"] == 0)
            # Restore the default time limits: on a busy machine an honest peer may need over 0.1 s.
            answers.handle(P, echo)
            assert await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S) == b"x"

    async def test_number_of_streams_of_one_peer_is_bounded(self) -> None:
        async with connected_pair() as (asks, answers), raw_host(answers) as hostile:
            answers.handle(P, echo)
            opened = []
            for _ in range(STREAMS_PER_PEER_MAX + 10):
                with suppress(StreamFailure):
                    opened.append(await open_raw(hostile, answers))
            assert streams(answers)["open"] <= STREAMS_PER_PEER_MAX
            assert await asks.request(answers.peer, P, b"x", deadline_s=DEADLINE_S) == b"x"
            for stream in opened:
                await stream.reset()


class TestHostileServer:
    """Our requests to a host that accepts the stream, and then violates our protocol."""

    @asynccontextmanager
    async def asking(
        self, serve: Callable[[INetStream], object]
    ) -> AsyncIterator[tuple[Network, PeerId]]:
        async with networks(1) as (asks,), raw_host() as hostile:
            hostile.set_stream_handler(TProtocol(P), serve)  # type: ignore[arg-type]
            peer = PeerId(str(hostile.get_id()))
            asks.remember(peer, [str(address) for address in hostile.get_transport_addrs()])
            await asks.connect_peer(peer)
            yield asks, peer

    async def test_silent_peer_raises_peer_too_slow(self) -> None:
        async def silent(stream: INetStream) -> None:
            await read_all(stream)

        async with self.asking(silent) as (asks, peer):
            with pytest.raises(PeerTooSlow) as caught:
                await asks.request(peer, P, b"x", deadline_s=0.2)
            assert caught.value.peer == peer

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (b"", PeerLost),
            (b"\x00\x00", PeerLost),
            (struct.pack(">I", 10) + b"\x00half", PeerLost),
            (b"\xff\xff\xff\xff", RemoteProtocolError),
            (struct.pack(">I", 0), RemoteProtocolError),
            (struct.pack(">I", 2) + b"\x09x", RemoteProtocolError),
            (struct.pack(">I", 5) + b"\x01\xff\xfe\x1b[", PeerUnreachable),
        ],
        ids=["reset", "cut", "half", "4 GiB", "no status", "status 9", "bad words"],
    )
    async def test_malformed_reply_names_the_peer(
        self, answer: bytes, expected: type[PeerError]
    ) -> None:
        async def malformed(stream: Any) -> None:
            await stream.read(4)
            if answer:
                await stream.write(answer)
                await stream.close_write()
            else:
                await stream.reset()

        async with self.asking(malformed) as (asks, peer):
            with pytest.raises(expected) as caught:
                await asks.request(peer, P, b"x", deadline_s=DEADLINE_S)
            assert caught.value.peer == peer
            assert "\x1b" not in caught.value.what

    @pytest.mark.parametrize("stuck_in", ["open_s", "write_s"])
    async def test_connection_to_a_frozen_peer_is_closed(self, stuck_in: str) -> None:
        """A frozen peer stops reading, so our writes block. When a blocked write is cancelled, its
        connection is no longer usable, so it is closed. Then the peer can be dialled again."""
        outcomes: list[str] = []

        async def ask(requester: Requester, peer: PeerId) -> None:
            with pytest.raises(PeerError) as caught:
                payload, limits = bytes(1 << 20), {"deadline_s": DEADLINE_S, "bytes_max": 9}
                await requester.request(peer, P, payload, **limits)  # type: ignore[arg-type]
            outcomes.append(caught.value.peer)

        async with self.asking(answer_once) as (asks, peer), trio.open_nursery() as nursery:
            requester = Requester(host_of(asks), nursery, **{stuck_in: 0.3})
            if stuck_in == "write_s":  # Open a stream before the freeze.
                await requester.request(peer, P, b"", deadline_s=DEADLINE_S, bytes_max=9)
            [connection] = host_of(asks).get_network().get_connections(ID.from_base58(peer))
            freeze(connection)
            async with trio.open_nursery() as asking:
                for _ in range(3 if stuck_in == "open_s" else 1):
                    asking.start_soon(ask, requester, peer)
            assert set(outcomes) == {peer}
            await eventually(lambda: peer not in asks.connected())
            await asks.connect_peer(peer)
            assert asks.connected() == {peer}


async def answer_once(stream: INetStream) -> None:
    """Answer an empty request, then only read."""
    await stream.read(4)
    await stream.write(struct.pack(">I", 1) + b"\x00")
    await read_all(stream)


def freeze(connection: Any) -> None:
    """Simulate an unplugged machine: writes block until the socket is closed."""
    stream = connection.muxed_conn.secured_conn.conn.read_writer.read_write_closer.stream
    closed = trio.Event()
    close = stream.close

    async def stuck(data: bytes) -> None:
        await closed.wait()
        raise IOException("closed")

    async def close_and_wake() -> None:
        closed.set()
        await close()

    stream.write, stream.close = stuck, close_and_wake

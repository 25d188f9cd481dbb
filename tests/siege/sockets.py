"""Attacks with raw sockets on both planes. They do not need an identity.

Each attack is a loop that opens connections from the strangers' many addresses. Some attacks keep
the newest connections open in a pool. All actions of one attack are of the same kind, so that its
name says what happens to a victim.
"""

from __future__ import annotations

import os
import random
import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass

import trio

from p2ptrain.dataplane.certificates import Credentials
from p2ptrain.dataplane.tls import tls_context
from p2ptrain.encoding import pack
from p2ptrain.identity import Identity
from tests.siege.ground import Ground, Tally, Victim, pause
from tests.siege.hosts import SOURCES, source_of

DIAL_S = 3.0
POOL = 128
"""Maximum number of connections in a pool. All attacks together hold hundreds of connections."""

MULTISTREAM = b"\x13/multistream/1.0.0\n"
NOISE = b"\x07/noise\n"


@dataclass
class Raw:
    """The inputs of the attacks in this module."""

    ground: Ground
    tally: Tally

    def anybody(self) -> Victim:
        return random.choice(self.ground.victims)

    async def dial(self, host: str, port: int) -> trio.SocketStream:
        with trio.fail_after(DIAL_S):
            return await trio.open_tcp_stream(
                host, port, local_address=source_of(random.randrange(SOURCES))
            )

    async def control(self) -> trio.SocketStream:
        victim = self.anybody()
        return await self.dial(victim.host, victim.port)

    async def data(self) -> trio.SocketStream:
        victim = self.anybody()
        return await self.dial(victim.host, victim.data_port)


class Pool:
    """A pool of the newest connections. It closes the oldest ones."""

    def __init__(self, size: int = POOL) -> None:
        self._size = size
        self._open: list[trio.SocketStream] = []

    def keep(self, stream: trio.SocketStream) -> None:
        self._open.append(stream)
        while len(self._open) > self._size:
            self._open.pop(0).socket.close()


async def half_open_handshakes(raw: Raw) -> None:
    """Begin hundreds of Noise handshakes and do not continue them."""
    pool = Pool()
    while True:
        stream = await raw.control()
        await stream.send_all(MULTISTREAM + NOISE)
        pool.keep(stream)
        raw.tally.did("half-open handshakes")
        await pause(0.03)


async def idle_connections(raw: Raw) -> None:
    """Hold silent connections to both planes."""
    pool = Pool()
    while True:
        pool.keep(await raw.control())
        pool.keep(await raw.data())
        raw.tally.did("idle connections", 2)
        await pause(0.1)


async def reset_storm(raw: Raw) -> None:
    """Connect and reset at once, again and again."""
    while True:
        for dial in (raw.control, raw.data):
            stream = await dial()
            with suppress(OSError):
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.socket.close()
            raw.tally.did("connect-and-reset")
        await pause(0.02)


def _bad_handshakes() -> list[bytes]:
    return [
        os.urandom(1000),
        b"\xff" * 10 + bytes(2000),  # a varint that is too long
        b"\x80\x80\x80\x80\x08" + bytes(2000),  # a protocol name of 2 GiB
        MULTISTREAM + b"\x03ls\n",
        MULTISTREAM + b"\x0d/plaintext/2\n",
        MULTISTREAM + NOISE + b"\xff\xff" + os.urandom(65_535),  # the largest Noise frame
        MULTISTREAM + NOISE + b"\x00\x20" + bytes(32),  # a small-order ephemeral key
        MULTISTREAM + NOISE + b"\x00\x30" + os.urandom(20),  # truncated
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        MULTISTREAM * 200,
    ]


async def bad_handshakes(raw: Raw) -> None:
    """Send oversized, truncated and senseless first messages on the control plane."""
    while True:
        for words in _bad_handshakes():
            with suppress(OSError, trio.BrokenResourceError, trio.TooSlowError):
                async with await raw.control() as stream:
                    await stream.send_all(words)
                    raw.tally.did("bad first words, control plane")
            await pause(0.1)


async def bad_tls(raw: Raw) -> None:
    """Send oversized, truncated and senseless first messages on the data plane."""
    hello = b"\x16\x03\x01"
    words = [
        os.urandom(500),
        hello + b"\xff\xff" + os.urandom(5000),
        hello + b"\x00\x05\x01\x00\x00\x01\xfc",
        b"\x17\x03\x03\x40\x00" + bytes(0x4000),
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    while True:
        for each in words:
            with suppress(OSError, trio.BrokenResourceError, trio.TooSlowError):
                async with await raw.data() as stream:
                    await stream.send_all(each)
                    raw.tally.did("bad first words, data plane")
            await pause(0.2)


async def slow_first_words(raw: Raw) -> None:
    """Send one byte of a handshake each second, on both planes, on a few dozen connections at
    once.
    """

    async def drip(words: bytes, control: bool) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.TooSlowError):
            async with await (raw.control() if control else raw.data()) as stream:
                for at in range(len(words)):
                    await stream.send_all(words[at : at + 1])
                    raw.tally.did("bytes of slow handshakes")
                    await pause(1.0)

    while True:
        async with trio.open_nursery() as nursery:
            for number in range(24):
                nursery.start_soon(drip, MULTISTREAM + NOISE, number % 2 == 0)
        await pause(0.5)


# TLS handshakes by peers that have a key but are not admitted


async def foreign_tls(raw: Raw) -> None:
    """Make handshakes with the keys of strangers. After a completed handshake, send a hello and
    wait.
    """
    credentials = [Credentials.create(Identity.from_seed(os.urandom(32))) for _ in range(4)]
    while True:
        for each in credentials:
            victim = raw.anybody()
            await trio.to_thread.run_sync(_tls, raw, victim, each, 0.3)
            await pause(0.3)


async def held_tls(raw: Raw) -> None:
    """Make handshakes with the key of a stranger, and hold the connection until the victim closes
    it.
    """
    credentials = Credentials.create(Identity.from_seed(os.urandom(32)))
    limit = trio.CapacityLimiter(16)

    async def hold() -> None:
        with suppress(OSError):
            await trio.to_thread.run_sync(
                _tls, raw, raw.anybody(), credentials, 20.0, limiter=limit
            )

    async with trio.open_nursery() as nursery:
        while True:
            nursery.start_soon(hold)
            await pause(1.0)


def _tls(raw: Raw, victim: Victim, credentials: Credentials, hold_s: float) -> None:
    """Make one complete handshake and send a hello. This blocks, so call it in a thread."""
    context = tls_context(credentials, [], server=False)
    context.verify_mode = ssl.CERT_NONE
    where = (source_of(random.randrange(SOURCES)), 0)
    with (
        suppress(OSError),
        socket.create_connection(
            (victim.host, victim.data_port), timeout=DIAL_S, source_address=where
        ) as plain,
    ):
        raw.tally.did("TLS with other keys" if hold_s < 1 else "held TLS handshakes")
        with context.wrap_socket(plain) as secured:
            secured.settimeout(hold_s)
            hello = pack({"purpose": "swarm"})
            secured.send(len(hello).to_bytes(4, "big") + hello)
            while secured.recv(1000):
                pass


ATTACKS = (
    half_open_handshakes,
    idle_connections,
    reset_storm,
    bad_handshakes,
    bad_tls,
    slow_first_words,
    foreign_tls,
    held_tls,
)
COUNTED = (
    "half-open handshakes",
    "idle connections",
    "connect-and-reset",
    "bad first words, control plane",
    "bad first words, data plane",
    "bytes of slow handshakes",
    "TLS with other keys",
    "held TLS handshakes",
)

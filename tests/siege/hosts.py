"""Strangers: hosts that speak enough libp2p to connect, each with its own identity.

They are built like our own hosts, but they do not listen. A victim sends its requests over the
connection that the stranger has made. All strangers run in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from p2ptrain.identity import Identity
from p2ptrain.net.host.hardening import build_host, running, sever
from tests.siege.ground import Victim, pause

SOURCES = 16
"""Number of addresses that the strangers share: four identities use each address."""

CONNECT_S = 20.0
AGAIN_S = 2.0

source: ContextVar[str | None] = ContextVar("source", default=None)
"""The address from which this task dials."""


@contextmanager
def dialling_from_sources() -> Iterator[None]:
    """Inside the block, make TCP connections from the address in `source`."""
    real = trio.open_tcp_stream

    async def open_tcp_stream(host: str, port: int, **options: Any) -> trio.SocketStream:
        options.setdefault("local_address", source.get())
        return await real(host, port, **options)

    trio.open_tcp_stream = open_tcp_stream  # type: ignore[assignment]
    try:
        yield
    finally:
        trio.open_tcp_stream = real


def source_of(number: int) -> str:
    return f"127.0.1.{1 + number % SOURCES}"


@dataclass
class Stranger:
    """One identity, which tries to stay connected to its `victims`."""

    number: int
    identity: Identity
    host: IHost
    victims: tuple[Victim, ...]
    connects: int = 0
    told: set[str] = field(default_factory=set)

    @property
    def source(self) -> str:
        return source_of(self.number)

    async def connect(self, victim: Victim) -> None:
        source.set(self.source)
        network: Any = self.host.get_network()
        with suppress(Exception):
            network.unblock_peer(ID.from_base58(victim.peer))
        with trio.fail_after(CONNECT_S):
            # Our hosts do not dial a peer by its id alone.
            where = Multiaddr(victim.address.partition("/p2p/")[0])
            await network.dial_addr(where, ID.from_base58(victim.peer))

    def is_connected(self, victim: Victim) -> bool:
        return bool(self.host.get_network().get_connections(ID.from_base58(victim.peer)))

    async def open(self, victim: Victim, protocol: str) -> INetStream:
        """Open a stream of `protocol`. Dial first if there is no connection."""
        if not self.is_connected(victim):
            await self.connect(victim)
            self.connects += 1
        with trio.fail_after(CONNECT_S):
            return await self.host.new_stream(ID.from_base58(victim.peer), [TProtocol(protocol)])

    async def hang_up(self, victim: Victim) -> None:
        await sever(self.host, ID.from_base58(victim.peer))

    async def stay_connected(self) -> None:
        """Loop for ever, and dial again whenever a victim has disconnected us."""
        while True:
            for victim in self.victims:
                if not self.is_connected(victim):
                    with suppress(Exception):
                        await self.connect(victim)
                        self.connects += 1
            await pause(AGAIN_S)


@asynccontextmanager
async def stranger(number: int, identity: Identity, victims: tuple[Victim, ...]) -> Any:
    host = build_host(identity, announce=[], mdns=False)
    async with running(host, []):
        yield Stranger(number, identity, host, victims)

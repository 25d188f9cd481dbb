"""A peer that speaks enough libp2p to connect, and then sends whatever a test gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.net.addresses import parse
from p2ptrain.net.host.hardening import build_host, running

from .conftest import LOOPBACK, identity

IDENTITY = identity(99)


@dataclass(frozen=True)
class Hostile:
    """A hostile peer's host, and the peer id of the node that it attacks."""

    host: IHost
    victim: ID

    @property
    def peer(self) -> PeerId:
        return PeerId(str(self.host.get_id()))

    async def open(self, protocol: str) -> INetStream:
        return await self.host.new_stream(self.victim, [TProtocol(protocol)])


@asynccontextmanager
async def hostile_to(victim: Network, who: Identity = IDENTITY) -> AsyncIterator[Hostile]:
    """Yield a hostile peer that is connected to `victim`."""
    host = build_host(who, announce=[], mdns=False)
    async with running(host, list(LOOPBACK)):
        await dial(host, victim)
        yield Hostile(host, ID.from_base58(victim.peer))


async def dial(host: IHost, target: Network) -> None:
    """Connect `host` to `target` by its address. Our hosts do not dial a peer by its id alone."""
    network: Any = host.get_network()
    address = Multiaddr(parse(target.addresses()[0]).transport)
    await network.dial_addr(address, ID.from_base58(target.peer))

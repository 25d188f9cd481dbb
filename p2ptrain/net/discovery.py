"""Finding peers of a run without being told: provider records in the DHT, and mDNS on a LAN.

Both say only where somebody may be, and neither is trusted: what is found is dialled like any other
address. The DHT is a convenience that may fail as a whole; the node then lives on what it knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import trio
from libp2p.abc import IHost
from libp2p.discovery.events.peerDiscovery import peerDiscovery
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from p2ptrain.ids import PeerId
from p2ptrain.net.addresses import parse_told
from p2ptrain.net.book import AddressBook
from p2ptrain.net.hardening import contain_tasks
from p2ptrain.net.records import Admitted, BoundedDHT

log = logging.getLogger(__name__)

PROVIDERS_MAX = 64
RESTART_S = 30.0
QUERY_S = 15.0
"""A query that meets dead peers waits for each of them; by then it has seen enough."""

Found = tuple[PeerId, list[str]]


class Discovery:
    """Provider records. `run` is its task; `connected` says whom to ask."""

    def __init__(
        self,
        host: IHost,
        book: AddressBook,
        connected: Callable[[], Iterable[PeerId]],
        admitted: Admitted,
    ) -> None:
        self._host = host
        self._admitted = admitted
        self._book = book
        self._connected = connected
        self._dht: BoundedDHT | None = None
        self._ready = trio.Event()

    async def run(self) -> None:
        """Serve the DHT for ever; if libp2p's part fails, start it anew after a while."""
        while True:
            try:
                dht = BoundedDHT(self._host, self._admitted)
                async with background_trio_service(dht) as manager:
                    contain_tasks(manager)
                    self._dht = dht
                    self._ready.set()
                    await trio.sleep_forever()
            except Exception as exc:
                log.debug("the DHT failed: %r", exc)
            self._dht = None
            await trio.sleep(RESTART_S)

    async def provide(self, key: str) -> None:
        """Record at the peers nearest to `key` that we take part in what it names."""
        dht = await self._current()
        if dht is not None:
            with trio.move_on_after(QUERY_S):
                await self._quietly(dht.provide, key)

    async def find_providers(self, key: str) -> list[Found]:
        """Peers on record for `key`, with their addresses as far as known; never ourselves."""
        dht = await self._current()
        found: list[Any] = []
        if dht is not None:
            found = await self._quietly(dht.find_providers, key) or []
        merged: dict[PeerId, list[str]] = {}
        for info in found[:PROVIDERS_MAX]:
            peer = PeerId(str(info.peer_id))
            if info.peer_id != self._host.get_id():
                told = merged.setdefault(peer, [])
                told += [str(a) for a in parse_told(map(str, info.addrs), peer)]
        for peer, addresses in merged.items():
            self._book.remember(peer, addresses)
        return [(p, [str(a) for a in self._book.addresses_of(p)]) for p in merged]

    async def _current(self) -> BoundedDHT | None:
        """The DHT, its table filled with everybody connected: libp2p does not do that."""
        with trio.move_on_after(1.0):
            await self._ready.wait()
        dht = self._dht
        if dht is not None:
            for peer in self._connected():
                addresses = self._book.addresses_of(peer)
                if addresses and not addresses[0].is_name:
                    info = PeerInfo(ID.from_base58(peer), [Multiaddr(addresses[0].transport)])
                    await dht.routing_table.add_peer(info, skip_server_mode_check=True)
        return dht

    async def _quietly(self, query: Any, key: str) -> Any:
        try:
            return await query(key)
        except Exception as exc:
            log.debug("a query of the DHT failed: %r", exc)
            return None


@contextmanager
def mdns_neighbours(me: PeerId, found: Callable[[PeerId, list[str]], None]) -> Iterator[None]:
    """While the block lasts, call `found`, in trio's thread, with what mDNS finds on the LAN."""
    token = trio.lowlevel.current_trio_token()

    def discovered(info: PeerInfo) -> None:
        peer = PeerId(str(info.peer_id))
        addresses = [str(a) for a in parse_told(map(str, info.addrs), peer)]
        if peer == me or not addresses:
            return
        try:
            token.run_sync_soon(found, peer, addresses)
        except trio.RunFinishedError:
            log.debug("mDNS found %s after the node had ended", peer)

    peerDiscovery.register_peer_discovered_handler(discovered)
    try:
        yield
    finally:
        peerDiscovery.unregister_peer_discovered_handler(discovered)

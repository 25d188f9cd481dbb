"""Peers of a run find each other by the DHT and by what they remember, without a bootstrap node."""

from __future__ import annotations

import pytest
import trio
from libp2p.discovery.events.peerDiscovery import peerDiscovery
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from p2ptrain.ids import PeerId
from p2ptrain.net import Network, discovery
from p2ptrain.net.discovery import mdns_neighbours

from .conftest import DEADLINE_S, echo, identity, networks

RUN = "ab" * 32


async def found(network: Network, peers: set[PeerId]) -> dict[PeerId, list[str]]:
    """Ask, as a node does now and then, until all of `peers` are on record."""
    with trio.fail_after(60):
        while True:
            records = dict(await network.find_providers(RUN))
            if peers <= set(records):
                return records


async def test_a_peer_on_record_is_found_by_one_that_never_met_it() -> None:
    async with networks(3) as (seed, old, new):
        await old.connect(seed.addresses()[0])
        await old.provide(RUN)
        await new.connect(seed.addresses()[0])
        records = await found(new, {old.peer})
        assert records[old.peer] == old.addresses()
        old.handle("/test/1", echo)
        assert await new.request(old.peer, "/test/1", b"x", deadline_s=DEADLINE_S) == b"x"


async def test_who_is_on_record_itself_and_holds_an_old_record_finds_the_others() -> None:
    """As nodes do: each provides before it asks. Nobody tells the new one of the old one."""
    gone = PeerInfo(ID.from_base58(identity(9).peer), [Multiaddr("/ip4/127.0.0.1/tcp/9")])
    async with networks(3) as (seed, old, new):
        await old.connect(seed.addresses()[0])
        await old.provide(RUN)
        await found(seed, {old.peer})
        await new.connect(seed.addresses()[0])
        dht = await new._discovery._current()
        assert dht is not None
        dht.provider_store.add_provider(bytes.fromhex(RUN), gone)
        await new.provide(RUN)
        assert set(await found(new, {old.peer})) == {old.peer, identity(9).peer}


async def test_one_does_not_find_oneself() -> None:
    async with networks(2) as (seed, other):
        await other.connect(seed.addresses()[0])
        await other.provide(RUN)
        await seed.provide(RUN)
        assert set(await found(other, {seed.peer})) == {seed.peer}


async def test_alone_one_finds_nobody_and_it_is_no_error() -> None:
    async with networks(1) as (alone,):
        await alone.provide(RUN)
        assert await alone.find_providers(RUN) == []


async def test_the_run_outlives_its_bootstrap_node() -> None:
    async with networks(2) as (a, b):
        async with networks(1) as (_,):
            pass
        a.remember(b.peer, b.addresses())
        await a.connect_peer(b.peer)
        await b.provide(RUN)
        assert b.peer in await found(a, {b.peer})


async def test_a_dht_that_fails_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "RESTART_S", 0.01)
    starts = 0
    works = discovery.BoundedDHT

    class FailsOnce(works):  # type: ignore[misc, valid-type]
        async def run(self) -> None:
            nonlocal starts
            starts += 1
            if starts == 1:
                raise RuntimeError("libp2p's bug")
            await super().run()

    monkeypatch.setattr(discovery, "BoundedDHT", FailsOnce)
    async with networks(2) as (a, b):
        await a.connect(b.addresses()[0])
        await b.provide(RUN)
        await found(a, {b.peer})
        assert starts >= 2


async def test_what_mdns_finds_is_checked_and_told() -> None:
    me, other = identity(1).peer, identity(2).peer
    told: list[tuple[PeerId, list[str]]] = []
    arrived = trio.Event()

    def note(peer: PeerId, addresses: list[str]) -> None:
        told.append((peer, addresses))
        arrived.set()

    with mdns_neighbours(me, note):
        for peer, host in ((me, "10.0.0.1"), (other, "0.0.0.0"), (other, "10.0.0.2")):
            info = PeerInfo(ID.from_base58(peer), [Multiaddr(f"/ip4/{host}/tcp/4201")])
            await trio.to_thread.run_sync(peerDiscovery.emit_peer_discovered, info)
        await arrived.wait()
    assert told == [(other, [f"/ip4/10.0.0.2/tcp/4201/p2p/{other}"])]

"""Peers of a run find each other through the DHT and through remembered addresses, without a
bootstrap node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.discovery.events.peerDiscovery import peerDiscovery
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.utils.varint import encode_varint_prefixed, read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

from p2ptrain.eviction import nobody
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net import Network, open_network
from p2ptrain.net import network as network_module
from p2ptrain.net.addresses import parse
from p2ptrain.net.book import HEARSAY_PER_PEER_MAX
from p2ptrain.net.discovery import mdns_neighbours
from p2ptrain.net.host.hardening import build_host
from p2ptrain.net.host.mdns_addresses import DialableAddresses
from p2ptrain.net.kad import PROTOCOL, key_of
from p2ptrain.net.lan_search import LanSearch
from p2ptrain.net.listening import outward_host

from .conftest import DEADLINE_S, LOOPBACK, echo, eventually, everybody, identity, networks
from .hostile import Hostile, hostile_to

RUN = "ab" * 32


async def found(network: Network, peers: set[PeerId]) -> dict[PeerId, list[str]]:
    """Ask repeatedly, as a node does, until the answers contain all of `peers`. Return the
    records."""
    with trio.fail_after(60):
        while True:
            records = dict(await network.find_providers(RUN))
            if peers <= set(records):
                return records


async def test_recorded_peer_is_found_by_a_peer_that_never_met_it() -> None:
    async with networks(3) as (seed, old, new):
        await old.connect(seed.addresses()[0])
        await old.provide(RUN)
        await new.connect(seed.addresses()[0])
        records = await found(new, {old.peer})
        assert records[old.peer] == old.addresses()
        old.handle("/test/1", echo)
        assert await new.request(old.peer, "/test/1", b"x", deadline_s=DEADLINE_S) == b"x"


async def test_peer_that_already_has_a_record_still_asks_others() -> None:
    """The new peer already has a record, that of a peer which has left. Nevertheless it asks the
    seed, and learns of the old peer from the answer. Like a node, each peer announces itself
    first."""
    gone = identity(9).peer
    async with networks(3) as (seed, old, new):
        await old.connect(seed.addresses()[0])
        await old.provide(RUN)
        await found(seed, {old.peer})
        async with open_network(identity(9), listen=LOOPBACK, admitted=everybody) as leaving:
            await leaving.connect(new.addresses()[0])
            await leaving.provide(RUN)
            await found(new, {gone})
        await eventually(lambda: new.connected() == set())
        await new.connect(seed.addresses()[0])
        await new.provide(RUN)
        assert set(await found(new, {old.peer})) == {old.peer, gone}


class Liar:
    """A peer with a DHT that returns false records. It counts the questions that it is asked."""

    def __init__(self, hostile: Hostile, told: dict[PeerId, list[str]]) -> None:
        self.asked = 0
        self._told = told
        hostile.host.set_stream_handler(TProtocol(PROTOCOL), self._answer)

    async def _answer(self, stream: INetStream) -> None:
        request = Message.FromString(await read_varint_prefixed_bytes_limited(stream, 1 << 16))
        self.asked += request.type == Message.GET_PROVIDERS
        reply = Message(type=request.type, key=request.key)
        for peer, addresses in self._told.items():
            entry = reply.providerPeers.add(id=ID.from_base58(peer).to_bytes())
            entry.addrs.extend(Multiaddr(address).to_bytes() for address in addresses)
            reply.closerPeers.add().CopyFrom(entry)
        await stream.write(encode_varint_prefixed(reply.SerializeToString()))
        await stream.close()


class TestAnswersOfOthers:
    """In a reported attack, a stranger's answers replaced the known addresses of members."""

    async def test_strangers_are_not_asked_for_addresses(self) -> None:
        member, me = identity(2).peer, identity(1).peer
        async with networks(2, [{me, member}.__contains__, everybody]) as (victim, honest):
            await victim.connect(honest.addresses()[0])
            before = victim.addresses_of(honest.peer)
            async with hostile_to(victim) as hostile:
                liar = Liar(hostile, {honest.peer: ["/ip4/203.0.113.1/tcp/1"]})
                await victim.provide(RUN)
                await honest.provide(RUN)
                assert set(await found(victim, {member})) == {member}
                assert liar.asked == 0
                assert victim.addresses_of(honest.peer) == before

    async def test_only_members_are_asked_even_in_an_open_run(self) -> None:
        async with networks(2) as (victim, honest):
            await honest.connect(victim.addresses()[0])
            victim.set_members([honest.peer])
            async with hostile_to(victim) as hostile:
                liar = Liar(hostile, {})
                await honest.provide(RUN)
                assert set(await found(victim, {honest.peer})) == {honest.peer}
                assert liar.asked == 0

    async def test_addresses_in_answers_rank_last_and_dns_names_are_ignored(self) -> None:
        lies = [f"/ip4/203.0.113.{n}/tcp/1" for n in range(1, 30)]
        names = [f"/dns4/{n}.slow.example/tcp/1" for n in range(8)]
        async with networks(2) as (victim, honest):
            await victim.connect(honest.addresses()[0])
            known = victim.addresses_of(honest.peer)
            async with hostile_to(victim) as hostile:
                Liar(hostile, {honest.peer: names[:4] + lies, identity(7).peer: names})
                records = await found(victim, {honest.peer, identity(7).peer})
            ours = [f"{lie}/p2p/{honest.peer}" for lie in lies[:HEARSAY_PER_PEER_MAX]]
            assert records == {honest.peer: known + ours, identity(7).peer: []}
            assert victim.known_addresses() == {honest.peer: known}, (
                "addresses from DHT answers must not be saved"
            )

    async def test_dht_record_of_a_peer_does_not_replace_its_known_addresses(self) -> None:
        """Unlike a heartbeat, a DHT record is not signed by the peer that it names."""
        async with networks(2) as (victim, other):
            await other.connect(victim.addresses()[0])
            victim.remember(other.peer, ["/ip4/10.0.0.1/tcp/1"])
            known = victim.known_addresses()
            told = ["/dns4/slow.example/tcp/1", "/ip4/203.0.113.1/tcp/1"]
            victim._discovery.records.add(key_of(RUN), other.peer, told, trio.current_time())
            records = await found(victim, {other.peer})
            heard = f"/ip4/203.0.113.1/tcp/1/p2p/{other.peer}"
            assert records == {other.peer: [*known[other.peer], heard]}
            assert victim.known_addresses() == known

    async def test_peer_not_yet_admitted_asks_the_peers_it_knows(self) -> None:
        member = identity(2).peer
        async with networks(2, [nobody, everybody]) as (newcomer, seed):
            await newcomer.connect(seed.addresses()[0])
            await seed.provide(RUN)
            assert (await found(newcomer, {member}))[member] == seed.addresses()

    async def test_peer_named_in_an_answer_is_not_dialled(self) -> None:
        """Plain libp2p dials all addresses of every peer that an answer names, to ask that peer
        too."""
        dialled = 0

        async def count(stream: trio.SocketStream) -> None:
            nonlocal dialled
            dialled += 1

        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, count, 0, host="127.0.0.1")
            listeners = await nursery.start(serve)
            trap = f"/ip4/127.0.0.1/tcp/{listeners[0].socket.getsockname()[1]}"
            async with networks(1) as (victim,), hostile_to(victim) as hostile:
                told = {identity(number).peer: [trap] for number in range(10, 30)}
                liar = Liar(hostile, told)
                await found(victim, set(told))
                await victim.provide(RUN)
                assert liar.asked >= 1
            assert dialled == 0
            nursery.cancel_scope.cancel()


async def test_peer_does_not_find_itself() -> None:
    async with networks(2) as (seed, other):
        await other.connect(seed.addresses()[0])
        await other.provide(RUN)
        await seed.provide(RUN)
        assert set(await found(other, {seed.peer})) == {seed.peer}


async def test_lone_peer_finds_nobody_and_gets_no_error() -> None:
    async with networks(1) as (alone,):
        await alone.provide(RUN)
        assert await alone.find_providers(RUN) == []


async def test_peers_find_each_other_after_the_bootstrap_node_has_left() -> None:
    async with networks(2) as (a, b):
        async with open_network(identity(9), listen=LOOPBACK, admitted=everybody) as bootstrap:
            for peer in (a, b):
                await peer.connect(bootstrap.addresses()[0])
            await b.provide(RUN)
            await found(a, {b.peer})
        await eventually(lambda: not a.connected() | b.connected())
        await a.connect_peer(b.peer)
        await b.provide(RUN)
        assert b.peer in await found(a, {b.peer})


async def test_addresses_found_by_mdns_are_checked_and_reported() -> None:
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


async def test_search_of_the_local_network_begins_later_and_ends_once() -> None:
    me, other = identity(1).peer, identity(2).peer
    told: list[tuple[PeerId, list[str]]] = []
    arrived, log = trio.Event(), list[str]()

    def note(peer: PeerId, addresses: list[str]) -> None:
        told.append((peer, addresses))
        arrived.set()

    def open_search(_: PeerId) -> Callable[[], None]:
        log.append("opened")
        return lambda: log.append("ended")

    search = LanSearch(me, note, open_search)
    info = PeerInfo(ID.from_base58(other), [Multiaddr("/ip4/10.0.0.2/tcp/4201")])
    peerDiscovery.emit_peer_discovered(info)  # Nobody listens yet.
    assert await search.start()
    assert await search.start()
    await trio.to_thread.run_sync(peerDiscovery.emit_peer_discovered, info)
    await arrived.wait()
    assert search.is_running
    await search.close()
    await search.close()
    assert not search.is_running
    assert log == ["opened", "ended"]
    assert told == [(other, [f"/ip4/10.0.0.2/tcp/4201/p2p/{other}"])]


async def test_machine_without_a_network_cannot_search_it() -> None:
    def open_search(_: PeerId) -> Callable[[], None]:
        raise OSError("no such device")

    search = LanSearch(identity(1).peer, lambda peer, addresses: None, open_search)
    assert not await search.start()
    assert not search.is_running
    await search.close()


class FakeHost:
    """Is bound to `addresses`."""

    def __init__(self, addresses: list[Multiaddr]) -> None:
        self.addresses = addresses

    def get_transport_addrs(self) -> list[Multiaddr]:
        return self.addresses


@pytest.mark.parametrize("listen", [None, ["/ip4/127.0.0.1/tcp/0"], ["/ip6/::1/tcp/0"], []])
async def test_mdns_and_dht_records_never_contain_an_unspecified_address(
    listen: list[str] | None,
) -> None:
    async with networks(2, listen=listen) as (network, _):
        bound = FakeHost([Multiaddr(each) for each in network.listening()])
        by_mdns = [str(each) for each in DialableAddresses(bound).get_transport_addrs()]
        for text in (*by_mdns, *network.addresses()):
            assert not parse(text).is_unspecified
        assert bool(by_mdns) == bool(network.addresses()) == (listen != [])
        if listen is None and (lan := outward_host(six=False)):
            assert f"/ip4/{lan}/tcp/{parse(by_mdns[0]).port}" in by_mdns
            assert not any("127.0.0.1" in text for text in by_mdns)


async def test_addresses_found_by_mdns_are_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody on the LAN can send mDNS packets in the name of any peer."""

    def without_mdns(identity: Identity, *, announce: list[str], mdns: bool) -> IHost:
        assert mdns
        return build_host(identity, announce=announce, mdns=False)

    monkeypatch.setattr(network_module, "build_host", without_mdns)
    member = identity(2).peer
    async with open_network(identity(1), listen=[], mdns=True, admitted=everybody) as network:
        network.remember(member, ["/ip4/10.0.0.1/tcp/1"])
        known = network.known_addresses()
        lie = PeerInfo(ID.from_base58(member), [Multiaddr("/ip4/203.0.113.1/tcp/1")])
        await trio.to_thread.run_sync(peerDiscovery.emit_peer_discovered, lie)
        told = [*known[member], f"/ip4/203.0.113.1/tcp/1/p2p/{member}"]
        await eventually(lambda: network.addresses_of(member) == told)
        assert network.known_addresses() == known

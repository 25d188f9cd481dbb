"""The control plane: one libp2p host, and the operations that the node uses.

`open_network` starts it. `Network` is a thin interface to the parts of this package. It does not
know about runs, ledgers or heartbeats: callers supply protocols, topics and payloads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import trio
from libp2p.abc import IHost
from libp2p.peer.id import ID

from p2ptrain.address_group import plain_host
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net.addresses import Address, parse, parse_told
from p2ptrain.net.book import AddressBook
from p2ptrain.net.connections import Connections, Event
from p2ptrain.net.dialling import Accept, Dialler, anybody
from p2ptrain.net.discovery import Discovery, Found, mdns_neighbours
from p2ptrain.net.feed import SharedFeed
from p2ptrain.net.gossip.pubsub import Gossip, Validator
from p2ptrain.net.host.hardening import (
    build_host,
    contained,
    running,
    sever,
)
from p2ptrain.net.host.health_checks import close_connection, close_if_silent
from p2ptrain.net.host.socket_addresses import local_host_of
from p2ptrain.net.lan_search import LanSearch
from p2ptrain.net.listening import claimed, dialable, listen_failed
from p2ptrain.net.requests import WAITS, Handler, Requester, Responder, Service, Waits
from p2ptrain.net.room import ROOM, Room

DIAL_S = 10.0

Admitted = Callable[[PeerId], bool]


class Network:
    """The result of `open_network`. Callers name peers by id; the network remembers their
    addresses."""

    def __init__(
        self,
        identity: Identity,
        host: IHost,
        nursery: trio.Nursery,
        admitted: Admitted,
        room: Room,
    ) -> None:
        self.peer = identity.peer
        self._host = host
        self._nursery = nursery
        self._members: frozenset[PeerId] = frozenset()
        self._book = AddressBook(self._is_member)
        self._listening: list[Address] = []
        """The addresses that this node is bound to, such as 0.0.0.0."""
        self._told: list[Address] = []
        """The addresses that other peers learn instead of its own, if its user gives any."""
        self._requester = Requester(host, nursery)
        self._responder = Responder(host, admitted)
        self._connections = Connections(
            admitted,
            self._is_member,
            drop=self.drop,
            close=lambda connection: nursery.start_soon(close_connection, connection),
            check=lambda connection: nursery.start_soon(contained(close_if_silent), connection),
            gone=self._requester.forget,
            room=room,
        )
        self._dialler = Dialler(
            host, self.peer, self._book, self._connections.peers, self._is_member
        )
        self._gossip = Gossip(host, admitted, self._is_member, room)
        self._discovery = Discovery(
            host, self._book, self._connections.peers, admitted, self._is_member
        )
        host.get_network().register_notifee(self._connections)
        self.lan = LanSearch(self.peer, self.record_reported)
        """Searches the local network by mDNS once it is started. `mdns` of `open_network` searches
        from the start, and also announces this node."""

    @property
    def events(self) -> trio.MemoryReceiveChannel[Event]:
        """PeerConnected and PeerDisconnected events. Unread events are dropped, oldest first."""
        return self._connections.feed.receiver

    def addresses(self) -> list[str]:
        """Return the addresses at which others can dial this node now, each with its peer id. They
        change when this machine changes its network."""
        found = self._told or [own.of_peer(self.peer) for own in dialable(self._listening)]
        return [str(address) for address in found]

    def listening(self) -> list[str]:
        """Return the addresses that this node is bound to, such as /ip4/0.0.0.0/tcp/4201."""
        return [str(address) for address in self._listening]

    def connected(self) -> set[PeerId]:
        return self._connections.peers()

    def site_of(self, peer: PeerId) -> str:
        """Return the address group of a connected `peer`; see `address_group`."""
        return self._connections.site_of(peer)

    def host_of(self, peer: PeerId) -> str:
        """Return the IP address at the other end of the newest connection with `peer`; "" if it is
        not connected. The peer can receive data there, since the connection has been set up."""
        return self._connections.host_of(peer)

    def round_trip_s(self, peer: PeerId) -> float | None:
        """Return the seconds that a packet to a connected `peer` and back takes, as this machine's
        kernel measures it on the existing connection; None if that is not known."""
        return self._connections.round_trip_s(peer)

    def arrivals(self) -> dict[str, float]:
        """Return when another peer last connected to this node from each site, by trio's clock.
        Sites are those of `address_group`; only the newest ones are kept."""
        return self._connections.arrivals.by_site()

    def remember(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Replace the announced addresses of `peer` with `addresses`, which `peer` itself sent;
        skip malformed ones. The address at which `peer` last answered is kept."""
        if peer != self.peer:
            self._book.remember(peer, addresses)

    def recall(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Record the addresses of `peer` that this node saved before it was restarted. The first of
        them is kept in addition to those that `peer` announces."""
        if peer != self.peer:
            self._book.recall(peer, addresses)

    def record_reported(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Record the `addresses` that another peer reports for `peer`. For ten minutes, these
        addresses are tried after the known ones. DNS names among them are dropped."""
        if peer != self.peer:
            self._book.record_reported(peer, addresses, trio.current_time())

    def addresses_of(self, peer: PeerId) -> list[str]:
        """Return the addresses at which to dial `peer`: known ones, then those that other peers
        reported."""
        return [str(a) for a in self._book.addresses_of(peer, trio.current_time())]

    def known_addresses(self) -> dict[PeerId, list[str]]:
        """Return all known addresses, for a PeerCache. Those that other peers reported are left
        out."""
        return self._book.snapshot()

    def dialable_peers(self) -> list[PeerId]:
        """Return all peers with an address, known or reported by other peers."""
        return self._book.peers(trio.current_time())

    async def connect(self, address: str, *, deadline_s: float = DIAL_S) -> PeerId:
        """Connect to the peer at `address`, which must end in /p2p/PEER.

        Raises:
            ConfigError: ADDR-SYNTAX, ADDR-NO-PEER-ID, ADDR-SELF.
            NetworkUnreachable: NET-DNS, NET-REFUSED, NET-TIMEOUT, NET-NO-ROUTE, NET-SILENT,
                NET-NOT-LIBP2P, NET-RESET, NET-WRONG-ID.
        """
        return await self._dialler.connect(address, deadline_s=deadline_s)

    async def connect_any(
        self,
        addresses: Sequence[str],
        *,
        or_else: Sequence[str] = (),
        deadline_s: float = DIAL_S,
        accept: Accept = anybody,
    ) -> PeerId:
        """Connect to the first of `addresses` whose peer answers and is accepted by `accept`. If
        there is none, try the addresses in `or_else` for up to another `deadline_s`.

        Each address gets its share of the time. Several addresses are tried at once, so `accept`
        may be called for several peers at once. When `accept` has accepted a peer, its other calls
        are cancelled. Not even `deadline_s` ends a call, so `accept` needs its own time limit.

        Raises:
            ConfigError, NetworkUnreachable: no peer was accepted; the evidence has a line for each
                address. If there is only one address, the error is that of the dial or of `accept`.
        """
        return await self._dialler.connect_any(
            addresses, or_else=or_else, deadline_s=deadline_s, accept=accept
        )

    async def connect_peer(self, peer: PeerId, *, deadline_s: float = DIAL_S) -> None:
        """Connect to `peer` at any remembered address. Raises PeerUnreachable or PeerTooSlow."""
        await self._dialler.connect_peer(peer, deadline_s=deadline_s)

    async def prove(self, peer: PeerId, host: str, port: int, *, deadline_s: float) -> None:
        """Let `peer` prove that it listens at `host`:`port`, an IP address, on a connection that is
        closed again. Connections with `peer` that are already open are not affected.

        Raises NetworkUnreachable: NET-REFUSED, NET-TIMEOUT, NET-NO-ROUTE, NET-SILENT,
        NET-NOT-LIBP2P, NET-RESET, NET-WRONG-ID."""
        await self._dialler.prove(peer, host, port, deadline_s=deadline_s)

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection with `peer`."""
        await sever(self._host, ID.from_base58(peer))

    def close_connections_except(self, hosts: Collection[str]) -> None:
        """Close in the background the connections that use an address of this machine that is not
        in `hosts`: their packets do not leave this machine any more."""
        for connection in self._host.get_network().get_connections():
            local = local_host_of(connection)
            if local and plain_host(local) not in hosts:
                self._nursery.start_soon(close_connection, connection)

    def drop(self, peer: PeerId) -> None:
        """Close every connection with `peer` in the background."""
        self._nursery.start_soon(self.disconnect, peer)

    async def request(
        self,
        peer: PeerId,
        protocol: str,
        payload: bytes,
        *,
        deadline_s: float,
        bytes_max: int = 1 << 20,
    ) -> bytes:
        """Send a request to `peer`, dialling it first if necessary, and wait for its reply.

        If the connection breaks, the request may be sent again, so the handler may see it twice.

        Raises:
            PeerUnreachable: no connection, or the peer refused (PEER-REFUSED) or failed
                (PEER-FAILED).
            PeerLost: the connection broke.
            PeerTooSlow: no reply within `deadline_s`.
            RemoteProtocolError: the reply is longer than `bytes_max`, or the peer reports that our
                request is malformed.
        """
        ends = trio.current_time() + deadline_s
        if peer not in self._connections.peers():
            await self._dialler.connect_peer(peer, deadline_s=deadline_s)
        left_s = ends - trio.current_time()
        return await self._requester.request(
            peer, protocol, payload, deadline_s=left_s, bytes_max=bytes_max
        )

    def handle(
        self,
        protocol: str,
        handler: Handler,
        *,
        bytes_max: int = 1 << 16,
        anyone: bool = False,
        waits: Waits = WAITS,
    ) -> None:
        """Answer requests of `protocol` with `await handler(peer, payload)` from now on.

        Peers that are not admitted are refused unless `anyone`. A handler may raise
        RemoteProtocolError (malformed), NotAuthorised (refused) or another P2PTrainError (failed);
        its text is sent to the peer. Any other exception is logged and fails only that request.
        """
        self._responder.handle(protocol, Service(handler, bytes_max, anyone, waits))

    async def publish(self, topic: str, payload: bytes) -> None:
        """Sign `payload` and send it to all admitted peers that subscribe to `topic`; peers forward
        it. Messages can be lost or arrive in any order. If more than about thirty are published at
        once, the last ones are lost."""
        await self._gossip.publish(topic, payload)

    def subscribe(self, topic: str) -> SharedFeed[bytes]:
        """Return a feed of (author, payload). Signatures and admission have been checked."""
        feed, new = self._gossip.feed(topic)
        if new:
            self._nursery.start_soon(contained(self._gossip.pubsub.subscribe), topic)
        return feed

    def set_validator(self, topic: str, validator: Validator) -> None:
        """Let `validator(forwarder, author, payload)` decide which messages of `topic` are
        delivered and forwarded. It is called before the signature check."""
        self._gossip.pubsub.validators[topic] = validator

    def set_members(self, members: Iterable[PeerId]) -> None:
        """Set the members: when a limit is reached, other peers are dropped before members."""
        self._members = frozenset(members)

    def pop_floods(self) -> dict[PeerId, int]:
        """Return the number of refused gossip messages per neighbour since the last call."""
        return self._gossip.limits.pop_refused()

    def refresh_admission(self) -> None:
        """Call this when the result of `admitted` may have changed for any peer."""
        self._gossip.pubsub.refresh()
        self._connections.refresh()

    async def provide(self, key: str) -> None:
        """Announce in the DHT that this node takes part in the run `key`. Announcements expire and
        can be lost, so call this repeatedly."""
        await self._discovery.provide(key, self.addresses())

    async def find_providers(self, key: str) -> list[Found]:
        """Return the peers that take part in the run `key`, with their addresses. Addresses that
        other peers report are recorded in the same way as by `record_reported`."""
        return await self._discovery.find_providers(key)

    def statistics(self) -> dict[str, object]:
        return {
            "connected": len(self._connections.peers()),
            "events_lost": self._connections.feed.lost,
            **self._responder.statistics(),
            **self._gossip.statistics(),
        }

    def _is_member(self, peer: PeerId) -> bool:
        return peer in self._members

    @asynccontextmanager
    async def _run(
        self, listen: list[str], announce: Sequence[str], mdns: bool
    ) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(running(self._host, listen))
            self._note_listening(listen, announce)
            await stack.enter_async_context(self._gossip.running())
            stack.push_async_callback(self.lan.close)
            if mdns:
                stack.enter_context(mdns_neighbours(self.peer, self.record_reported))
            yield

    def _note_listening(self, listen: list[str], announce: Sequence[str]) -> None:
        bound = [parse(str(address)) for address in self._host.get_transport_addrs()]
        if len(bound) < len(listen):
            raise listen_failed(listen)
        self._listening = sorted(bound, key=lambda each: each.kind)  # IPv4 before IPv6
        self._told = parse_told(announce, self.peer)


@asynccontextmanager
async def open_network(
    identity: Identity,
    *,
    listen: Sequence[str] | None,
    port: int = 0,
    announce: Sequence[str] = (),
    mdns: bool = False,
    admitted: Admitted,
    room: Room = ROOM,
    host: IHost | None = None,
) -> AsyncIterator[Network]:
    """Run a network while the block lasts.

    `listen` holds addresses such as /ip4/0.0.0.0/tcp/4201 (port 0: any free port; empty list: dial
    only; None: all addresses of this machine, at `port`, or at one free port for IPv4 and IPv6). If
    `announce` is given, other peers learn these addresses instead. `admitted` is called often and
    must return quickly. `room` limits the connections of peers that are not members.
    `host` is the libp2p host to use, made by `build_host` for the same identity; by default one is
    built here.

    Raises:
        ConfigError: ADDR-SYNTAX, ADDR-LISTEN, PORT-IN-USE, LOCK-FOLDER, LISTEN-FAILED.
    """
    with claimed(listen, port) as listening:
        told = [parse(address).transport for address in announce]
        if host is None:
            host = build_host(identity, announce=told, mdns=mdns)
        async with _unwrapped(), trio.open_nursery() as nursery:
            network = Network(identity, host, nursery, admitted, room)
            try:
                async with network._run(listening, announce, mdns):
                    yield network
            finally:
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def _unwrapped() -> AsyncIterator[None]:
    """If the block raises a single exception, raise it without the exception groups around it."""
    try:
        yield
    except BaseExceptionGroup as group:
        leaf: BaseException = group
        while isinstance(leaf, BaseExceptionGroup) and len(leaf.exceptions) == 1:
            leaf = leaf.exceptions[0]
        if isinstance(leaf, BaseExceptionGroup):
            raise
        raise leaf from leaf.__cause__

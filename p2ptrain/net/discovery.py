"""Find peers of a run, by mDNS on a LAN and by records in the DHT. A record says that a peer, the
provider, takes part in a run.

A node asks the members that it is connected to or, if there are none, other admitted peers. A node
that has not been admitted yet asks all connected peers; these are the peers that its user named.
The address book keeps the addresses in their answers as hearsay: they are not proven, expire, and
are tried last. This module itself does not dial anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.discovery.events.peerDiscovery import peerDiscovery
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.peerinfo import PeerInfo
from libp2p.utils.varint import encode_varint_prefixed, read_varint_prefixed_bytes_limited

from p2ptrain.eviction import IsMember
from p2ptrain.ids import PeerId
from p2ptrain.net.addresses import parse_told
from p2ptrain.net.book import AddressBook
from p2ptrain.net.kad import (
    ANSWER_BYTES_MAX,
    PROTOCOL,
    REQUEST_BYTES_MAX,
    KadServer,
    announcement,
    key_of,
    nearest,
    providers_in,
    question,
)
from p2ptrain.net.records import Admitted, ProviderRecords
from p2ptrain.net.requests import open_stream, write_all
from p2ptrain.rate_limit import Allowance
from p2ptrain.stranger_slots import StrangerSlots

log = logging.getLogger(__name__)

ASKED_MAX = 20
"""Maximum number of peers to which we send a question or an announcement: Kademlia's k."""
SERVED_MAX = 12
"""Maximum number of DHT streams served at the same time."""
STREAM_S = 20.0
"""Seconds that a stream may stay open. The requesting peer gives up after ten seconds."""
QUERY_S = 10.0
QUERIES_AT_ONCE = 16
QUERIES_PER_S = 2.0
"""Maximum requests per second from one peer. Our nodes send one a minute; a lookup by go-libp2p
takes three."""

Found = tuple[PeerId, list[str]]


class Discovery:
    """Announces this node to other peers, stores their announcements, and finds providers."""

    def __init__(
        self,
        host: IHost,
        book: AddressBook,
        connected: Callable[[], Collection[PeerId]],
        admitted: Admitted,
        is_member: IsMember,
    ) -> None:
        self._host = host
        self._me = PeerId(str(host.get_id()))
        self._book = book
        self._connected = connected
        self._admitted = admitted
        self._is_member = is_member
        self.records = ProviderRecords(admitted)
        self._answerer = KadServer(self._me, self.records, self._neighbours)
        self._places = StrangerSlots(SERVED_MAX)
        self._queries = Allowance(QUERIES_AT_ONCE, QUERIES_PER_S)
        host.set_stream_handler(TProtocol(PROTOCOL), self._serve)

    async def provide(self, name: str, addresses: list[str]) -> None:
        """Announce to the peers nearest to the key of `name` that we take part in that run."""
        key = key_of(name)
        self.records.announce(key, addresses)
        message = announcement(key, self._me, addresses)
        async with trio.open_nursery() as nursery:
            for peer in self._whom_to_ask(key):
                nursery.start_soon(self._announce_to, peer, message)

    async def find_providers(self, name: str) -> list[Found]:
        """Return the providers of `name` other than this node, with their addresses."""
        key = key_of(name)
        found = dict.fromkeys(self.records.of(key, trio.current_time()))

        async def ask(peer: PeerId) -> None:
            for other, addresses in (await self._ask(peer, key)).items():
                found.setdefault(other)
                self._book.record_reported(other, addresses, trio.current_time())

        for peer, addresses in self.records.of(key, trio.current_time()).items():
            self._book.record_reported(peer, addresses, trio.current_time())
        async with trio.open_nursery() as nursery:
            for peer in self._whom_to_ask(key):
                nursery.start_soon(ask, peer)
        found.pop(self._me, None)
        now = trio.current_time()
        return [(peer, [str(a) for a in self._book.addresses_of(peer, now)]) for peer in found]

    def _whom_to_ask(self, key: bytes) -> list[PeerId]:
        connected = [peer for peer in self._connected() if peer != self._me]
        if self._admitted(self._me):
            connected = [peer for peer in connected if self._admitted(peer)]
        members = [peer for peer in connected if self._is_member(peer)]
        return nearest(key, members or connected, ASKED_MAX)

    def _neighbours(self) -> dict[PeerId, list[str]]:
        """Return the peers whose addresses we pass on: they are connected and admitted, and
        announced these addresses themselves."""
        known = self._book.known
        return {
            peer: [str(address) for address in known(peer)]
            for peer in self._connected()
            if self._admitted(peer) and known(peer)
        }

    async def _announce_to(self, peer: PeerId, message: bytes) -> None:
        try:
            stream = await open_stream(self._host, peer, PROTOCOL)
            await write_all(self._host, stream, peer, encode_varint_prefixed(message))
            await stream.close()
        except Exception as exc:
            log.debug("%s did not accept our provider record: %r", peer, exc)

    async def _ask(self, peer: PeerId, key: bytes) -> dict[PeerId, list[str]]:
        try:
            stream = await open_stream(self._host, peer, PROTOCOL)
            reply = b""
            if await write_all(self._host, stream, peer, encode_varint_prefixed(question(key))):
                with trio.move_on_after(QUERY_S):
                    reply = await read_varint_prefixed_bytes_limited(stream, ANSWER_BYTES_MAX)
            await stream.reset()
            return providers_in(reply, key)
        except Exception as exc:
            log.debug("%s did not tell us which peers take part: %r", peer, exc)
        return {}

    async def _serve(self, stream: INetStream) -> None:
        """Answer the requests of one stream until it ends. Reset the stream after STREAM_S, or when
        another stream needs its place."""
        asker, turn = PeerId(str(stream.muxed_conn.peer_id)), _StreamTurn()
        with self._places.taken(asker, turn.give_up):
            while (request := await turn.read_request(stream)) is not None:
                if not await self._answer(stream, asker, request):
                    await stream.reset()
                    return
        await stream.close()

    async def _answer(self, stream: INetStream, asker: PeerId, request: bytes) -> bool:
        now = trio.current_time()
        if not self._queries.consume(asker, 1, now):
            return False
        answer = self._answerer.answer(asker, request, now)
        if not answer:
            return answer is not None
        return await write_all(self._host, stream, asker, encode_varint_prefixed(answer))


class _StreamTurn:
    """Limits how long a stream is read. Writes are not limited here, because a cancelled write
    would break the connection."""

    def __init__(self) -> None:
        self._ends = trio.current_time() + STREAM_S
        self._reading = trio.CancelScope()

    async def read_request(self, stream: INetStream) -> bytes | None:
        """Return the next request, or None at the end of the stream. Raises trio.TooSlowError when
        the stream has been open for STREAM_S."""
        with trio.CancelScope(deadline=self._ends) as self._reading:
            try:
                return await read_varint_prefixed_bytes_limited(stream, REQUEST_BYTES_MAX)
            except (StreamEOF, IncompleteReadError):
                return None
        raise trio.TooSlowError("a DHT stream was open for too long")

    def give_up(self) -> None:
        self._ends = self._reading.deadline = trio.current_time()


@contextmanager
def mdns_neighbours(me: PeerId, found: Callable[[PeerId, list[str]], None]) -> Iterator[None]:
    """While the block lasts, call `found`, in trio's thread, for peers found by mDNS."""
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

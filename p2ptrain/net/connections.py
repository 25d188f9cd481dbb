"""The connected peers, announced as events, and the limits on strangers (peers not admitted).

libp2p can hold two connections to one peer if both sides dialled at once, and can report the end of
a connection without having reported its start. So we keep a set of connections per peer, and a peer
is connected while its set is not empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio
from libp2p.abc import INetConn, INetStream, INetwork, INotifee
from multiaddr import Multiaddr

from p2ptrain.address_group import Arrivals, plain_host, site_of
from p2ptrain.eviction import IsMember
from p2ptrain.ids import PeerId
from p2ptrain.net.feed import Feed
from p2ptrain.net.host.round_trip import round_trip_s_of
from p2ptrain.net.room import ROOM, Room

EVENTS_MAX = 1024
PER_PEER_MAX = 4
"""Maximum number of connections with one peer. Two remain when both sides dial at once. The limit
stops a peer that keeps dialling."""


@dataclass(frozen=True, slots=True)
class PeerConnected:
    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    peer: PeerId


Event = PeerConnected | PeerDisconnected


@dataclass(frozen=True, slots=True)
class _Open:
    """An open connection, and the IP address of its peer; "" if it is unknown."""

    connection: INetConn
    host: str


class Connections(INotifee):
    """Receives libp2p's notifications about connections. Its callbacks must not block.

    `drop(peer)` must disconnect a surplus stranger, and `close(connection)` must end a surplus
    connection. `check(connection)` must end an older connection of a peer that has connected again,
    unless it still works. `gone(peer)` is called when a peer is no longer connected.
    """

    def __init__(
        self,
        admitted: Callable[[PeerId], bool],
        is_member: IsMember,
        *,
        drop: Callable[[PeerId], None],
        close: Callable[[INetConn], None],
        check: Callable[[INetConn], None],
        gone: Callable[[PeerId], None],
        room: Room = ROOM,
    ) -> None:
        self.feed: Feed[Event] = Feed(EVENTS_MAX)
        self._admitted = admitted
        self._is_member = is_member
        self._drop = drop
        self._close = close
        self._check = check
        self._gone = gone
        self._room = room
        self._open: dict[PeerId, dict[int, _Open]] = {}
        """The connections of each peer, oldest first."""
        self.arrivals = Arrivals()
        """The connections that other peers made to this node, by trio's clock."""
        self._strangers: dict[PeerId, None] = {}
        self._sites: dict[PeerId, str] = {}

    def peers(self) -> set[PeerId]:
        return set(self._open)

    def site_of(self, peer: PeerId) -> str:
        """Return the address group of the peer's first connection; "" if it is unknown."""
        return self._sites.get(peer, "")

    def host_of(self, peer: PeerId) -> str:
        """Return the IP address of the peer's newest connection; "" if it is unknown."""
        known = self._open.get(peer, {})
        return next(reversed(known.values())).host if known else ""

    def round_trip_s(self, peer: PeerId) -> float | None:
        """Return the round-trip time of the peer's newest connection; None if it is unknown."""
        known = self._open.get(peer, {})
        return round_trip_s_of(next(reversed(known.values())).connection) if known else None

    def refresh(self) -> None:
        """Update which connected peers count as strangers, after a change of admission."""
        for peer in self._open:
            if self._admitted(peer):
                self._strangers.pop(peer, None)
            else:
                self._strangers.setdefault(peer)

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        peer = _peer_of(conn)
        known = self._open.setdefault(peer, {})
        host, older = _host_of(conn), [each.connection for each in known.values()]
        known[id(conn)] = _Open(conn, host)
        if host and not conn.muxed_conn.is_initiator:
            self.arrivals.note(host, trio.current_time())
            for each in older:
                self._check(each)
        if len(known) > PER_PEER_MAX or self._has_no_room_for(peer):
            self._close(conn)
        if len(known) > 1:
            return
        self._sites[peer] = site_of(host) if host else ""
        self.feed.push(PeerConnected(peer))
        if not self._admitted(peer):
            self._strangers[peer] = None
            if len(self._strangers) > self._room.strangers:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                self._drop(oldest)

    def _has_no_room_for(self, peer: PeerId) -> bool:
        """Return whether `peer` is not a member and the limit for non-members is exceeded. Earlier
        non-members keep their connections, because they may soon be members."""
        if self._is_member(peer):
            return False
        others = [known for each, known in self._open.items() if not self._is_member(each)]
        return sum(map(len, others)) > self._room.others

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        peer = _peer_of(conn)
        known = self._open.get(peer, {})
        known.pop(id(conn), None)
        if known or peer not in self._open:
            return
        del self._open[peer]
        self._strangers.pop(peer, None)
        self._sites.pop(peer, None)
        self._gone(peer)
        self.feed.push(PeerDisconnected(peer))

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        return None

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        return None

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        return None

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        return None


def _peer_of(conn: INetConn) -> PeerId:
    return PeerId(str(conn.muxed_conn.peer_id))


def _host_of(conn: INetConn) -> str:
    """Return the IP address at the other end; "" if libp2p does not know it."""
    muxed: Any = conn.muxed_conn  # its interface does not declare `get_remote_address`
    remote = muxed.get_remote_address()
    return plain_host(remote[0]) if remote else ""

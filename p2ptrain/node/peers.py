"""What we know of the other peers: their last heartbeat, and where their data plane listens.

The table holds what peers say of themselves, checked for form and never trusted beyond that. It is
bounded: a run of more peers than `PEERS_MAX` would need another way to gossip anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p2ptrain.dataplane import Endpoint
from p2ptrain.encoding import unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.heartbeat import HEARTBEAT_BYTES_MAX, Heartbeat

PEERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class PeerView:
    """One peer by its own words. `heard_s` is our clock when its last heartbeat came."""

    peer: PeerId
    heartbeat: Heartbeat
    endpoint: Endpoint | None
    heard_s: float


class PeerTable:
    def __init__(self) -> None:
        self._views: dict[PeerId, PeerView] = {}

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[PeerView]:
        return iter(list(self._views.values()))

    def get(self, peer: PeerId) -> PeerView | None:
        return self._views.get(peer)

    def take(self, peer: PeerId, heartbeat: Heartbeat, now: float) -> PeerView | None:
        """Note a heartbeat; None if it is no news (a late or repeated one) or there is no room.

        Raises:
            RemoteProtocolError: its endpoint is malformed or another peer's.
        """
        known = self._views.get(peer)
        if not heartbeat.follows(known.heartbeat if known else None):
            return None
        if known is None and len(self._views) >= PEERS_MAX:
            return None
        view = PeerView(peer, heartbeat, endpoint_of(peer, heartbeat.endpoint), now)
        self._views[peer] = view
        return view

    def forget(self, peer: PeerId) -> None:
        self._views.pop(peer, None)

    def endpoint(self, peer: PeerId) -> Endpoint | None:
        view = self._views.get(peer)
        return view.endpoint if view else None


def endpoint_of(peer: PeerId, wire: bytes) -> Endpoint | None:
    """The endpoint in a heartbeat of `peer`; None where the peer has no data plane.

    Raises:
        RemoteProtocolError: malformed, or the endpoint of somebody else.
    """
    if not wire:
        return None
    endpoint = Endpoint.from_wire(unpack(wire, bytes_max=HEARTBEAT_BYTES_MAX))
    if endpoint.peer != peer:
        raise RemoteProtocolError("a heartbeat carries another peer's endpoint", peer=peer)
    return endpoint

"""The table of other peers: their last heartbeats, and where their data planes listen.

The table contains what peers report about themselves. Only the form of a report is checked; its
content may be false. The table is bounded: a run with more than `PEERS_MAX` peers would need a
different kind of gossip anyway.

A *full* heartbeat contains all fields. A *small* one contains only what changed since the sender's
last full one, its base (see `heartbeat_delta`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from p2ptrain.dataplane import Endpoint
from p2ptrain.encoding import unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.eviction import IsMember, nobody
from p2ptrain.ids import PeerId
from p2ptrain.peers.candidates import candidates_in, to_dial
from p2ptrain.peers.heartbeat import HEARTBEAT_BYTES_MAX, LACKS_MAX, Heartbeat
from p2ptrain.peers.heartbeat_delta import (
    FullHeartbeat,
    HeartbeatDelta,
    counts_of,
    full_heartbeat,
)

PEERS_MAX = 4096
OTHERS_MAX = 3072
"""Number of peers above which only members are added. The remaining 4,096 − 3,072 places are enough
for all members, since a roster has at most 1,024."""


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """One peer as it describes itself. `heard_s` is when its last heartbeat arrived, by our clock.

    `base` is its last full heartbeat, which is needed to decode small ones. `unread` is the
    incarnation and serial of a small heartbeat that is newer than `heartbeat` and could not be
    decoded.
    """

    peer: PeerId
    heartbeat: Heartbeat
    endpoint: Endpoint | None
    heard_s: float
    base: FullHeartbeat | None = None
    unread: tuple[int, int] | None = None


class PeerTable:
    def __init__(
        self,
        is_member: IsMember = nobody,
        *,
        peers_max: int = PEERS_MAX,
        others_max: int = OTHERS_MAX,
        external_host: Callable[[], str] = str,
    ) -> None:
        """`external_host` returns the address at which others see this node; "" if it is not known.
        It decides which addresses of a peer are dialled."""
        self._is_member = is_member
        self._peers_max = peers_max
        self._others_max = others_max
        self._external_host = external_host
        self._views: dict[PeerId, PeerRecord] = {}
        self._lacking: dict[PeerId, None] = {}

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[PeerRecord]:
        return iter(list(self._views.values()))

    def get(self, peer: PeerId) -> PeerRecord | None:
        return self._views.get(peer)

    def restore(self, peer: PeerId, beat: HeartbeatDelta) -> Heartbeat | None:
        """Decode a small heartbeat of `peer`. If this node lacks its base, return None, and note
        that `peer` should send a full one (`pop_lacking`).

        Raises:
            RemoteProtocolError: the small heartbeat and its base do not form a valid heartbeat.
        """
        record = self._views.get(peer)
        if record is not None and record.base is not None and beat.rests_on(record.base.heartbeat):
            return full_heartbeat(record.base, beat)
        if len(self._lacking) < self._peers_max:
            self._lacking[peer] = None
        return None

    def note_heartbeat(
        self, peer: PeerId, heartbeat: Heartbeat, now: float, base: FullHeartbeat | None = None
    ) -> PeerRecord | None:
        """Note a heartbeat. Return None if it is not new (late or repeated), or if the table is
        full. If `base` is given, small heartbeats are decoded with it from now on.

        Raises:
            RemoteProtocolError: its endpoint is malformed or belongs to a different peer.
        """
        known = self._views.get(peer)
        if not heartbeat.follows(known.heartbeat if known else None):
            return None
        if known is None and self._is_full_for(peer):
            return None
        endpoint = self._to_dial(endpoint_of(peer, heartbeat.endpoint), heartbeat)
        if base is not None:
            self._lacking.pop(peer, None)
        elif known is not None:
            base = known.base
        record = self._views[peer] = PeerRecord(peer, heartbeat, endpoint, now, base)
        return record

    def note_alive(self, peer: PeerId, beat: HeartbeatDelta, now: float) -> bool:
        """Note that `peer` is alive, because it sent a small heartbeat, which this node cannot
        decode. Return False if `beat` is old, or if no heartbeat of `peer` was ever accepted."""
        record = self._views.get(peer)
        if record is None:
            return False
        told = (record.heartbeat.incarnation, record.heartbeat.serial)
        if counts_of(beat) <= max(told, record.unread or told):
            return False
        self._views[peer] = replace(record, heard_s=now, unread=counts_of(beat))
        return True

    def pop_lacking(self) -> tuple[PeerId, ...]:
        """Return some of the peers that should send a full heartbeat, and forget them. If another
        small heartbeat of such a peer cannot be decoded, `restore` notes the peer again. So this
        node stops asking a peer that is gone."""
        chosen = tuple(self._lacking)[:LACKS_MAX]
        for peer in chosen:
            del self._lacking[peer]
        return chosen

    def forget(self, peer: PeerId) -> None:
        self._views.pop(peer, None)
        self._lacking.pop(peer, None)

    def with_candidates(self, endpoint: Endpoint) -> Endpoint:
        """Return `endpoint` with the addresses in the newest heartbeat of the same peer, if the
        heartbeat comes from the same start of the peer."""
        record = self._views.get(endpoint.peer)
        if record is None or record.endpoint is None:
            return endpoint
        if record.endpoint.certificate_der != endpoint.certificate_der:
            return endpoint
        return self._to_dial(endpoint, record.heartbeat) or endpoint

    def _to_dial(self, endpoint: Endpoint | None, heartbeat: Heartbeat) -> Endpoint | None:
        if endpoint is None:
            return None
        return to_dial(endpoint, candidates_in(heartbeat.addresses), self._external_host())

    def _is_full_for(self, peer: PeerId) -> bool:
        most = self._peers_max if self._is_member(peer) else self._others_max
        return len(self._views) >= most

    def endpoint(self, peer: PeerId) -> Endpoint | None:
        record = self._views.get(peer)
        return record.endpoint if record else None


def endpoint_of(peer: PeerId, wire: bytes) -> Endpoint | None:
    """Return the endpoint in a heartbeat of `peer`; None if the peer has no data plane. Raises
    RemoteProtocolError if the endpoint is malformed or belongs to a different peer."""
    if not wire:
        return None
    endpoint = Endpoint.from_wire(unpack(wire, bytes_max=HEARTBEAT_BYTES_MAX))
    if endpoint.peer != peer:
        raise RemoteProtocolError(
            "a heartbeat contains the endpoint of a different peer", peer=peer
        )
    return endpoint

"""The provider records of the DHT that a node stores: which admitted peers take part in which run.

Only a peer's own announcement over its own connection counts, and only if the peer is admitted.
Everybody may read, because a peer that is not admitted yet must be able to find the run.

Sans-IO: times come in. The module does not know the wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from p2ptrain.ids import PeerId
from p2ptrain.net.addresses import parse_told
from p2ptrain.net.book import ADDRESSES_PER_PEER_MAX

KEYS_MAX = 64
"""A node takes part in one run, but a seed may be asked about others."""
KEY_BYTES_MAX = 80
"""The DHT's specification allows no longer keys. A sha2-256 multihash has 34 bytes."""
PROVIDERS_MAX = 20
"""Records for one key: as many as other implementations store and return."""
RECORD_S = 3600.0
"""A node announces itself every minute; other implementations do so every 22 hours."""
ANNOUNCED_MAX = 2 * ADDRESSES_PER_PEER_MAX
"""Addresses of an announcement that are parsed."""

Admitted = Callable[[PeerId], bool]


class ProviderRecords:
    """The records. If the store is full, the oldest make room, so a peer that filled it once does
    not keep others out.
    """

    def __init__(self, admitted: Admitted) -> None:
        self._admitted = admitted
        self._own: dict[bytes, list[str]] = {}
        self._kept: dict[bytes, dict[PeerId, tuple[float, list[str]]]] = {}

    def announce(self, key: bytes, addresses: list[str]) -> None:
        """Record that we take part in `key` ourselves. Our own records never expire."""
        self._own[key] = addresses

    def add(self, key: bytes, peer: PeerId, addresses: Iterable[str], now: float) -> bool:
        """Store the announcement of `peer`. Return False if it is refused."""
        told = [str(address) for address in parse_told(addresses, peer)][:ADDRESSES_PER_PEER_MAX]
        if not 0 < len(key) <= KEY_BYTES_MAX or not told or not self._admitted(peer):
            return False
        known = self._kept.pop(key, {})
        known.pop(peer, None)
        known[peer] = now + RECORD_S, told
        while len(known) > PROVIDERS_MAX:
            del known[next(iter(known))]
        self._kept[key] = known
        while len(self._kept) > KEYS_MAX:
            del self._kept[next(key for key in self._kept)]
        return True

    def of(self, key: bytes, now: float) -> dict[PeerId, list[str]]:
        """Return the addresses of all peers on record for `key`, except ourselves and peers that
        are no longer admitted.
        """
        kept = self._kept.get(key, {})
        for peer in [peer for peer, (until, _) in kept.items() if until <= now]:
            del kept[peer]
        return {peer: told for peer, (_, told) in kept.items() if self._admitted(peer)}

    def own(self, key: bytes) -> list[str]:
        """Return our own addresses if we take part in `key`; an empty list if not."""
        return self._own.get(key, [])

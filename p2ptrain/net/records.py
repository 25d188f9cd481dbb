"""The DHT provider records that a node stores: which admitted peers take part in which run.

A peer can only announce itself, over its own connection, and only if it is admitted. Anybody may
read the records, because a peer that is not admitted yet must be able to find the run.

This module does no I/O: times are arguments. It does not know the wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from p2ptrain.ids import PeerId
from p2ptrain.net.addresses import parse_told
from p2ptrain.net.book import ADDRESSES_PER_PEER_MAX

KEYS_MAX = 64
"""Maximum number of keys, one for each run. A node takes part in one run, but a seed may store
records of other runs."""
KEY_BYTES_MAX = 80
"""Maximum bytes of a key: the limit of the DHT's specification. A sha2-256 multihash has 34
bytes."""
PROVIDERS_MAX = 20
"""Maximum number of records for one key. Other implementations store and return the same number."""
RECORD_S = 3600.0
"""Lifetime of a record in seconds. A node announces itself every minute; other implementations do
so every 22 hours."""
ANNOUNCED_MAX = 2 * ADDRESSES_PER_PEER_MAX
"""Maximum number of addresses that we parse from an announcement."""

Admitted = Callable[[PeerId], bool]


class ProviderRecords:
    """The records. A full store drops its oldest records, so a peer cannot keep other peers out by
    filling it."""

    def __init__(self, admitted: Admitted) -> None:
        self._admitted = admitted
        self._own: dict[bytes, list[str]] = {}
        self._kept: dict[bytes, dict[PeerId, tuple[float, list[str]]]] = {}

    def announce(self, key: bytes, addresses: list[str]) -> None:
        """Record that this node takes part in the run of `key`. Its own records never expire."""
        self._own[key] = addresses

    def add(self, key: bytes, peer: PeerId, addresses: Iterable[str], now: float) -> bool:
        """Store the announcement of `peer`. Return False if the announcement is refused."""
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
            del self._kept[next(iter(self._kept))]
        return True

    def of(self, key: bytes, now: float) -> dict[PeerId, list[str]]:
        """Return the addresses of all providers of `key`, except this node and peers that are no
        longer admitted."""
        kept = self._kept.get(key, {})
        for peer in [peer for peer, (until, _) in kept.items() if until <= now]:
            del kept[peer]
        return {peer: told for peer, (_, told) in kept.items() if self._admitted(peer)}

    def own(self, key: bytes) -> list[str]:
        """Return this node's addresses if it takes part in the run of `key`; otherwise []."""
        return self._own.get(key, [])

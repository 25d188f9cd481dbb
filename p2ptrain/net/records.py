"""What the DHT keeps for others: who takes part in a run, told by those who are admitted.

libp2p 0.8.1 keeps whatever anybody sends: values of any kind, and any number of keys and addresses.
Reading stays open to everybody: who is not admitted yet must find the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.kad_dht import kad_dht
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.kad_dht.provider_store import ProviderStore
from libp2p.peer.peerinfo import PeerInfo
from libp2p.records.validator import NamespacedValidator

from p2ptrain.ids import PeerId
from p2ptrain.net.book import ADDRESSES_PER_PEER_MAX
from p2ptrain.net.places import Places

KEYS_MAX = 64
"""A node takes part in one run; a seed may be asked about others."""
PROVIDERS_MAX = 20
"""As many as libp2p hands out."""
REQUEST_BYTES_MAX = 16 << 10
"""The longest is a record of one peer with its addresses, told twice."""
QUERIES_MAX = 12
"""libp2p's bound on queries that are answered at once."""
QUERY_S = 20.0
"""Who asks gives up after ten."""
SEARCH_S = 15.0
"""A search that meets dead peers waits for each of them; by then it has seen enough."""

Admitted = Callable[[PeerId], bool]


class Records(ProviderStore):
    """Provider records of peers that are admitted. Where it is full the oldest make room, so that
    whoever once filled it does not keep others out; the keys that we provide ourselves stay."""

    def __init__(self, host: IHost, routing: Any, admitted: Admitted) -> None:
        super().__init__(host, routing)
        self._admitted = admitted

    def add_provider(self, key: bytes, provider: PeerInfo) -> None:
        peer = provider.peer_id
        if peer != self.local_peer_id and not self._admitted(PeerId(str(peer))):
            return
        known = self.providers.setdefault(key, {})
        known.pop(str(peer), None)
        while len(known) >= PROVIDERS_MAX:
            del known[next(iter(known))]
        super().add_provider(key, PeerInfo(peer, provider.addrs[:ADDRESSES_PER_PEER_MAX]))
        others = [other for other in self.providers if other not in self.providing_keys]
        for other in others[: max(0, len(self.providers) - KEYS_MAX)]:
            del self.providers[other]

    async def find_providers(self, key: bytes, count: int = PROVIDERS_MAX) -> list[PeerInfo]:
        """Those on record here, and those that others tell of.

        libp2p asks nobody once it has a record itself, be it an old one; and whoever takes part in
        what the key names has its own. What others tell is not kept: nobody asks us for hearsay.
        """
        told = ProviderStore(self.host, self.peer_routing)
        with trio.move_on_after(SEARCH_S):
            await told.find_providers(key, count)
        return [*self.get_providers(key), *told.get_providers(key)]


class _Query:
    """A stream of the DHT. libp2p reads it without a deadline; its reads end together."""

    def __init__(self, stream: INetStream) -> None:
        self._stream = stream
        self._ends = trio.current_time() + QUERY_S
        self._reading = trio.CancelScope()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, count: int | None = None) -> bytes:
        """Only this is cut off: a write that is cancelled would break the connection."""
        with trio.CancelScope(deadline=self._ends) as self._reading:
            return await self._stream.read(count)
        raise trio.TooSlowError("a query of the DHT took too long")

    def give_up(self) -> None:
        self._ends = self._reading.deadline = trio.current_time()


class BoundedDHT(KadDHT):
    """The DHT with provider records only, and with a place for whoever asks."""

    def __init__(self, host: IHost, admitted: Admitted) -> None:
        kad_dht.MAX_DHT_MESSAGE_SIZE = REQUEST_BYTES_MAX  # type: ignore[attr-defined]
        # No name space, so no value is taken: we have none to keep.
        nothing = NamespacedValidator({}, strict_validation=True)
        super().__init__(
            host,
            DHTMode.SERVER,
            validator=nothing,
            validator_changed=True,
            strict_validation=True,
        )
        self.provider_store = Records(host, self.peer_routing, admitted)
        self._places = Places(QUERIES_MAX)
        self._inbound_limiter = trio.CapacityLimiter(10**9)  # it refuses whoever comes last

    async def handle_stream(self, stream: INetStream) -> None:
        query: Any = _Query(stream)
        with self._places.taken(stream.muxed_conn.peer_id, query.give_up):
            await super().handle_stream(query)

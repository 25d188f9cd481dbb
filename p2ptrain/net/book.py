"""The addresses of known peers: in memory while the node runs, and on disk for the next start.

A run outlives its bootstrap nodes because peers remember each other. The addresses come from peers,
and anybody may have edited the file. So the addresses and the file are bounded, and nothing in them
is trusted: a wrong address costs one failed dial.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from p2ptrain.eviction import IsMember, most_dispensable, nobody
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId
from p2ptrain.net.addresses import Address, parse_told

PEERS_MAX = 2048
ADDRESSES_PER_PEER_MAX = 8
"""Maximum number of addresses of one peer. A machine has a few interfaces, each with IPv4 and
IPv6."""
NAMES_PER_PEER_MAX = 2
"""Maximum number of DNS names among the addresses of a peer. A lookup may occupy a thread for half
a minute."""
HEARSAY_S = 600.0
"""Seconds for which hearsay (addresses that other peers report for a peer) is kept. A node queries
the DHT every minute, so hearsay that is still true is renewed before it expires."""
HEARSAY_PEERS_MAX = 256
HEARSAY_PER_PEER_MAX = 4
HEARSAY_LOOKED_AT_MAX = 16
FILE_BYTES_MAX = 1 << 21


class AddressBook:
    """The addresses of peers, by source.

    The *known* addresses of a peer are the address where it answered last, and then the addresses
    in its own newest announcement. A new announcement replaces the earlier announcement; only the
    peer itself can make it. When the book is full, it forgets the peers that have been silent
    longest, members last. Addresses that other peers report for a peer are *hearsay*. Hearsay is
    tried after the known addresses, never displaces a known address, and expires. It never contains
    names, because a name would make us query a DNS server that a stranger chose.
    """

    def __init__(self, is_member: IsMember = nobody) -> None:
        self._is_member = is_member
        self._known: dict[PeerId, _Known] = {}
        self._hearsay: dict[PeerId, tuple[float, list[Address]]] = {}

    def remember(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Replace the announced addresses of `peer` with `addresses`; skip malformed ones. The
        address at which `peer` last answered is kept. Call this only for addresses that `peer`
        itself has announced."""
        answered = self._known.get(peer, _Known()).answered
        self._keep(peer, _Known(answered, _bounded(parse_told(addresses, peer))))

    def note_answer(self, peer: PeerId, address: Address) -> None:
        """Record that `peer` answered at `address` and proved its identity."""
        announced = self._known.get(peer, _Known()).announced
        self._keep(peer, _Known(address.of_peer(peer), announced))

    def recall(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Record the addresses that `snapshot` returned for `peer` before this node was restarted.
        The first address counts as the one at which `peer` last answered. It is kept when `peer`
        announces others, because `peer` may not know it (if its user forwarded a port by hand)."""
        told = parse_told(addresses, peer)
        self._keep(peer, _Known(told[0] if told else None, _bounded(told[1:])))

    def _keep(self, peer: PeerId, known: _Known) -> None:
        self._known.pop(peer, None)
        if not known.addresses or not is_peer_id(peer):
            return
        self._known[peer] = known
        while len(self._known) > PEERS_MAX:
            del self._known[most_dispensable(self._known, self._is_member)]

    def record_reported(self, peer: PeerId, addresses: Iterable[str], now: float) -> None:
        """Record as hearsay the `addresses` that another peer reports for `peer`. A lie costs only
        a failed dial, because the handshake proves who answers."""
        told = parse_told(islice(addresses, HEARSAY_LOOKED_AT_MAX), peer)
        told = [address for address in told if not address.is_name][:HEARSAY_PER_PEER_MAX]
        if not told or not is_peer_id(peer):
            return
        self._hearsay.pop(peer, None)
        self._hearsay[peer] = now + HEARSAY_S, told
        while len(self._hearsay) > HEARSAY_PEERS_MAX:
            del self._hearsay[most_dispensable(self._hearsay, self._is_member)]

    def addresses_of(self, peer: PeerId, now: float) -> list[Address]:
        """Return the known addresses of `peer`, and then its hearsay that has not expired."""
        until, heard = self._hearsay.get(peer, (now, []))
        return list(dict.fromkeys([*self.known(peer), *(heard if until > now else ())]))

    def known(self, peer: PeerId) -> list[Address]:
        """Return the known addresses of `peer`, without hearsay. The address at which `peer` last
        answered comes first."""
        return self._known.get(peer, _Known()).addresses

    def peers(self, now: float) -> list[PeerId]:
        """Return the peers with a known address or hearsay."""
        for peer in [peer for peer, (until, _) in self._hearsay.items() if until <= now]:
            del self._hearsay[peer]
        return list(dict.fromkeys([*self._known, *self._hearsay]))

    def snapshot(self) -> dict[PeerId, list[str]]:
        """Return all known addresses, for a PeerCache. Hearsay is not written to disk."""
        return {peer: [str(a) for a in known.addresses] for peer, known in self._known.items()}


@dataclass(frozen=True, slots=True)
class _Known:
    """The known addresses of one peer. `answered` is the address at which the peer last
    answered."""

    answered: Address | None = None
    announced: tuple[Address, ...] = ()

    @property
    def addresses(self) -> list[Address]:
        """All known addresses, in the order in which to dial them."""
        first = () if self.answered is None else (self.answered,)
        return list(_bounded(dict.fromkeys([*first, *self.announced])))


def _bounded(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return the first ADDRESSES_PER_PEER_MAX addresses, without surplus DNS names."""
    names = 0
    kept = []
    for address in addresses:
        names += address.is_name
        if not address.is_name or names <= NAMES_PER_PEER_MAX:
            kept.append(address)
    return tuple(kept[:ADDRESSES_PER_PEER_MAX])


def newest_first(met: Mapping[PeerId, list[str]]) -> list[str]:
    """Return all addresses of a snapshot in the order in which to dial them: the first address of
    each peer, then the second address of each, and so on. Peers heard from last come first."""
    ranks = zip_longest(*reversed(list(met.values())))
    return [address for rank in ranks for address in rank if address is not None]


class PeerCache:
    """A file with the addresses of known peers. A lost or damaged file counts as empty."""

    def __init__(self, path: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self.complaint = ""
        """Why `load` ignored the file, for the journal; empty if it did not."""

    def load(self) -> dict[PeerId, list[str]]:
        """Return the file's valid addresses by peer; {} if there is no file or it is malformed."""
        self.complaint = ""
        try:
            with self._path.open("rb") as file:
                content = file.read(self._bytes_max + 1)
        except FileNotFoundError:
            return {}
        except OSError as exc:
            self.complaint = f"the peer cache {self._path} cannot be read: {exc.strerror}"
            return {}
        return self._checked(content)

    def save(self, addresses: Mapping[PeerId, Iterable[str]], is_member: IsMember = nobody) -> None:
        """Atomically replace the file's content with a snapshot. If the snapshot is longer than
        `load` would read, keep the members, then the newest of the other peers, and drop the rest.

        Raises:
            OSError: the disk is full or the folder is not writable.
        """
        content = _fitting(addresses, is_member, self._bytes_max)
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(content)
            os.replace(temporary, self._path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _checked(self, content: bytes) -> dict[PeerId, list[str]]:
        try:
            if len(content) > self._bytes_max:
                raise ValueError("it is too large")
            value = json.loads(content)
            if not isinstance(value, dict):
                raise ValueError("it does not contain a JSON object")
        except (ValueError, RecursionError) as exc:
            self.complaint = f"the peer cache {self._path} was ignored: {exc}"
            return {}
        book = AddressBook()
        for peer, addresses in value.items():
            if is_peer_id(peer) and isinstance(addresses, list):
                book.recall(PeerId(peer), [a for a in addresses if isinstance(a, str)])
        return book.snapshot()


def _fitting(addresses: Mapping[PeerId, Iterable[str]], is_member: IsMember, bytes_max: int) -> str:
    """Return the JSON text of as many entries of `addresses` as fit into `bytes_max`, in their
    order. Members' entries are chosen first, then those of the newest peers."""
    texts = {
        peer: json.dumps({peer: [*known]}, indent=0)[1:-1] for peer, known in addresses.items()
    }
    kept, left = set(), bytes_max - len("{}")
    newest = list(texts)[::-1]
    for peer in sorted(newest, key=is_member, reverse=True):
        left -= len(texts[peer]) + len(",")
        if left < 0:
            break
        kept.add(peer)
    return "{" + ",".join(text for peer, text in texts.items() if peer in kept) + "}"

"""The addresses of known peers: in memory while the node runs, and on disk for the next start.

A run outlives its bootstrap nodes because peers remember each other. The addresses come from peers,
and anybody may have edited the file. So both are bounded and nothing in them is trusted: a wrong
address costs one failed dial.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from itertools import islice, zip_longest
from pathlib import Path

from p2ptrain.eviction import IsMember, most_dispensable, nobody
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId
from p2ptrain.net.addresses import Address, parse_told

PEERS_MAX = 2048
ADDRESSES_PER_PEER_MAX = 8
"""Older addresses are usually ports that the peer used before a restart."""
NAMES_PER_PEER_MAX = 2
"""DNS names among the addresses of a peer. A lookup may occupy a thread for half a minute."""
HEARSAY_S = 600.0
"""Lifetime of hearsay in seconds. We query the DHT every minute, so current addresses are renewed
before they expire."""
HEARSAY_PEERS_MAX = 256
HEARSAY_PER_PEER_MAX = 4
HEARSAY_LOOKED_AT_MAX = 16
FILE_BYTES_MAX = 1 << 21


class AddressBook:
    """The addresses of peers, by source.

    Addresses that a peer signed, and addresses at which it has answered, come first. These *known*
    addresses are kept until newer ones displace them. When the book is full, it forgets the peers
    that have been silent longest, and forgets members only after all other peers. Statements of
    other peers about a peer's addresses are *hearsay*. Hearsay is tried after the known addresses,
    never displaces them, and expires. It never contains DNS names, because a name would make us
    query a DNS server that a stranger chose.
    """

    def __init__(self, is_member: IsMember = nobody) -> None:
        self._is_member = is_member
        self._addresses: dict[PeerId, list[Address]] = {}
        self._hearsay: dict[PeerId, tuple[float, list[Address]]] = {}

    def remember(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Put `addresses`, in their order, before the known ones. Malformed addresses are skipped.
        Call this only for addresses that `peer` itself has announced.
        """
        told = parse_told(addresses, peer)
        if not told or not is_peer_id(peer):
            return
        known = self._addresses.pop(peer, [])
        merged = _with_few_names(dict.fromkeys([*told, *known]))
        self._addresses[peer] = merged[:ADDRESSES_PER_PEER_MAX]
        while len(self._addresses) > PEERS_MAX:
            del self._addresses[most_dispensable(self._addresses, self._is_member)]

    def hear(self, peer: PeerId, addresses: Iterable[str], now: float) -> None:
        """Record that another peer says that `peer` is at `addresses`.

        A lie costs only a failed dial, because the handshake proves who answers.
        """
        told = parse_told(islice(addresses, HEARSAY_LOOKED_AT_MAX), peer)
        told = [address for address in told if not address.is_name][:HEARSAY_PER_PEER_MAX]
        if not told or not is_peer_id(peer):
            return
        self._hearsay.pop(peer, None)
        self._hearsay[peer] = now + HEARSAY_S, told
        while len(self._hearsay) > HEARSAY_PEERS_MAX:
            del self._hearsay[most_dispensable(self._hearsay, self._is_member)]

    def addresses_of(self, peer: PeerId, now: float) -> list[Address]:
        """Return the known addresses, newest first, then hearsay that has not expired."""
        until, heard = self._hearsay.get(peer, (now, []))
        return list(
            dict.fromkeys([*self._addresses.get(peer, ()), *(heard if until > now else ())])
        )

    def known(self, peer: PeerId) -> list[Address]:
        """Return the known addresses of `peer`, newest first, without hearsay."""
        return list(self._addresses.get(peer, ()))

    def peers(self, now: float) -> list[PeerId]:
        """Return the peers with a known address or hearsay."""
        for peer in [peer for peer, (until, _) in self._hearsay.items() if until <= now]:
            del self._hearsay[peer]
        return list(dict.fromkeys([*self._addresses, *self._hearsay]))

    def snapshot(self) -> dict[PeerId, list[str]]:
        """Return all known addresses, for a PeerCache. Hearsay is not written to disk."""
        return {peer: [str(a) for a in known] for peer, known in self._addresses.items()}


def _with_few_names(addresses: Iterable[Address]) -> list[Address]:
    names = 0
    kept = []
    for address in addresses:
        names += address.is_name
        if not address.is_name or names <= NAMES_PER_PEER_MAX:
            kept.append(address)
    return kept


def newest_first(met: Mapping[PeerId, list[str]]) -> list[str]:
    """Return all addresses of a snapshot in the order to dial them. First comes the newest address
    of each peer, starting with the peer heard from most recently; then the second-newest address of
    each, and so on.
    """
    ranks = zip_longest(*reversed(list(met.values())))
    return [address for rank in ranks for address in rank if address is not None]


class PeerCache:
    """A file of peers met before. A lost or damaged file counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.complaint = ""
        """Why `load` ignored the file, for the journal; empty if it did not."""

    def load(self) -> dict[PeerId, list[str]]:
        """Return the addresses by peer, each checked; {} if there is no file or it is malformed."""
        self.complaint = ""
        try:
            with self._path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return {}
        except OSError as exc:
            self.complaint = f"the peer cache {self._path} cannot be read: {exc.strerror}"
            return {}
        return self._checked(content)

    def save(self, addresses: Mapping[PeerId, Iterable[str]], is_member: IsMember = nobody) -> None:
        """Atomically replace the file's content with a snapshot. If the snapshot is longer than
        `load` would read, keep members first, then the newest peers.

        Raises:
            OSError: the disk is full or the folder is not writable.
        """
        content = _fitting(addresses, is_member)
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
            if len(content) > FILE_BYTES_MAX:
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
                book.remember(PeerId(peer), [a for a in addresses if isinstance(a, str)])
        return book.snapshot()


def _fitting(addresses: Mapping[PeerId, Iterable[str]], is_member: IsMember) -> str:
    """Return as many of `addresses` as a file may hold, in their order."""
    texts = {peer: _entry(peer, known) for peer, known in addresses.items()}
    kept, left = set(), FILE_BYTES_MAX - len("{}")
    newest = list(texts)[::-1]
    for peer in sorted(newest, key=is_member, reverse=True):
        left -= len(texts[peer]) + len(",")
        if left < 0:
            break
        kept.add(peer)
    return "{" + ",".join(text for peer, text in texts.items() if peer in kept) + "}"


def _entry(peer: PeerId, known: Iterable[str]) -> str:
    return json.dumps({peer: list(known)}, indent=0)[1:-1]

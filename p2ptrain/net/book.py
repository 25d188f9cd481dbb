"""Where peers were met: in memory while the node runs, and on disk for the next start.

A run outlives its bootstrap nodes because peers remember each other. What is remembered was told by
peers, and the file may have been touched by anybody, so both are bounded and nothing in them is
trusted: an address that is wrong costs a failed dial.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path

from p2ptrain.crowding import IsMember, most_dispensable, nobody
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId
from p2ptrain.net.addresses import Address, parse_told

PEERS_MAX = 2048
ADDRESSES_PER_PEER_MAX = 8
"""More than that are ports of past restarts."""
FILE_BYTES_MAX = 1 << 21


class AddressBook:
    """The addresses of peers, the newest first; the peers longest not heard of are forgotten, the
    members last."""

    def __init__(self, is_member: IsMember = nobody) -> None:
        self._is_member = is_member
        self._addresses: dict[PeerId, list[Address]] = {}

    def remember(self, peer: PeerId, addresses: Iterable[str]) -> None:
        """Put `addresses`, in their order, before those known. What is no address is left out."""
        told = parse_told(addresses, peer)
        if not told or not is_peer_id(peer):
            return
        known = self._addresses.pop(peer, [])
        merged = list(dict.fromkeys([*told, *known]))
        self._addresses[peer] = merged[:ADDRESSES_PER_PEER_MAX]
        while len(self._addresses) > PEERS_MAX:
            del self._addresses[most_dispensable(self._addresses, self._is_member)]

    def addresses_of(self, peer: PeerId) -> list[Address]:
        return list(self._addresses.get(peer, ()))

    def snapshot(self) -> dict[PeerId, list[str]]:
        """All of it, for a PeerCache."""
        return {peer: [str(a) for a in known] for peer, known in self._addresses.items()}


def newest_first(met: Mapping[PeerId, list[str]]) -> list[str]:
    """All addresses of a snapshot in the order to dial them: who was heard of last comes first, and
    an older address of anybody after the newest of everybody."""
    ranks = zip_longest(*reversed(list(met.values())))
    return [address for rank in ranks for address in rank if address is not None]


class PeerCache:
    """A file of peers met before. It may be lost or broken at any time: then it is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.complaint = ""
        """Why `load` ignored the file, in words for the journal; empty if it did not."""

    def load(self) -> dict[PeerId, list[str]]:
        """The addresses by peer, each checked; {} if there is no file or it makes no sense."""
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
        """Write the file anew, whole or not at all. `addresses` are those of a snapshot; of more
        than `load` would read, the members' are kept, and then the newest.

        Raises:
            OSError: the disk is full or the folder is not ours.
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
                raise ValueError("it holds no table")
        except (ValueError, RecursionError) as exc:
            self.complaint = f"the peer cache {self._path} was ignored: {exc}"
            return {}
        book = AddressBook()
        for peer, addresses in value.items():
            if is_peer_id(peer) and isinstance(addresses, list):
                book.remember(PeerId(peer), [a for a in addresses if isinstance(a, str)])
        return book.snapshot()


def _fitting(addresses: Mapping[PeerId, Iterable[str]], is_member: IsMember) -> str:
    """As much of `addresses` as a file may hold, in its order."""
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

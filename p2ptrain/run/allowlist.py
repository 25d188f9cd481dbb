"""The list of peers that may take part, numbered and signed by the run's organiser.

Lists spread by gossip, in any order, and all peers must end up with the same list. So the list with
the highest sequence number wins. The organiser's tool never gives two lists the same number; if it
happens anyway, each peer keeps the list that arrived first.

This module does not know how a list is sent, or what happens to removed peers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p2ptrain.encoding import pack
from p2ptrain.identity import Identity, is_peer_id
from p2ptrain.ids import PeerId, RunId
from p2ptrain.run.envelope import ENVELOPE_BYTES_MAX, Signed
from p2ptrain.run.manifest import Run
from p2ptrain.run.organiser import said_by_organiser
from p2ptrain.run.reading import plain

KIND = "allowlist"
ALLOWLIST_PEERS_MAX = 4096
"""Maximum number of peers on a list. A node keeps track of at most this many peers, too."""

ALLOWLIST_BYTES_MAX = 54 * ALLOWLIST_PEERS_MAX + 2 * ENVELOPE_BYTES_MAX
"""Maximum length of a signed list. Each peer takes 54 bytes: an id of 52 letters, and a msgpack
header of two bytes. The rest is the envelope of the signature and the list's other fields."""

SEQUENCE_MAX = 2**53


@dataclass(frozen=True, slots=True)
class Allowlist:
    """`peers` are sorted and unique, so that equal lists have equal bytes. Create one with `of`."""

    run: RunId
    sequence: int
    peers: tuple[PeerId, ...]

    def __post_init__(self) -> None:
        if not 0 < self.sequence <= SEQUENCE_MAX:
            raise ValueError(f"the sequence number is {self.sequence}, not 1 to {SEQUENCE_MAX}")
        if len(self.peers) > ALLOWLIST_PEERS_MAX:
            raise ValueError(f"{len(self.peers)} peers exceed the limit of {ALLOWLIST_PEERS_MAX}")
        for peer in self.peers:
            if not is_peer_id(peer):
                raise ValueError(f"{str(peer)[:80]!r} is not a peer id")
        if list(self.peers) != sorted(set(self.peers)):
            raise ValueError("the peers are not sorted, or one is listed twice")

    @classmethod
    def of(cls, run: RunId, sequence: int, peers: Iterable[PeerId]) -> Allowlist:
        return cls(run, sequence, tuple(sorted(set(peers))))

    def with_peer(self, peer: PeerId) -> Allowlist:
        """Return the next list, with `peer` on it."""
        return Allowlist.of(self.run, self.sequence + 1, [*self.peers, peer])

    def without_peer(self, peer: PeerId) -> Allowlist:
        """Return the next list, without `peer`."""
        return Allowlist.of(self.run, self.sequence + 1, set(self.peers) - {peer})


@dataclass(frozen=True, slots=True)
class SignedAllowlist:
    """A list with its signature, as sent to peers and stored in `run/allowlist.signed` in a node's
    home (the folder with its files)."""

    allowlist: Allowlist
    signed: Signed

    @classmethod
    def publish(cls, identity: Identity, allowlist: Allowlist) -> SignedAllowlist:
        return cls(allowlist, Signed.by(identity, KIND, pack(plain(allowlist))))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, run: Run) -> SignedAllowlist:
        """Return the list for `run` in `data`, which may come from any peer.

        Raises:
            RunMismatch: it is a valid list of another run.
            RemoteProtocolError: it is too long, malformed, altered, or not signed by the run's
                organiser.
        """
        allowlist, signed = said_by_organiser(
            Allowlist, data, run, kind=KIND, bytes_max=ALLOWLIST_BYTES_MAX, code="ALLOWLIST-SIGNER"
        )
        return cls(allowlist, signed)

    def to_bytes(self) -> bytes:
        return self.signed.to_bytes()

    def replaces(self, current: SignedAllowlist | None) -> bool:
        """Return whether a peer that has `current` should replace it with this list."""
        return current is None or self.allowlist.sequence > current.allowlist.sequence

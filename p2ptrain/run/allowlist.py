"""The list of peers that may take part, numbered and signed by the run's organisers.

Lists spread by gossip, in any order, and all peers must end up with the same list. So the list with
the highest sequence number wins. Two organisers may sign different lists with the same number at
the same time: then the list with the smaller digest wins. The other list is not lost. An organiser
that has both signs the next list, with the decisions of both (`Allowlist.merged`).

To merge two lists, one must know which decision about a peer is newer. So a list counts the
*revision* of each peer: 0 when the peer is first admitted, and one more for each change. Odd
revisions are revocations, which stay on the list, and even ones admit the peer again. The higher
revision wins. So a revocation wins over a simultaneous approval, unless the approval's signer had
seen it. A run with one organiser and without delegates does not need revisions, and its lists have
the same bytes as in earlier versions.

This module does not know how a list is sent, or what happens to removed peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from p2ptrain.encoding import pack
from p2ptrain.identity import Identity, is_peer_id
from p2ptrain.ids import PeerId, RunId
from p2ptrain.run.envelope import COSIGNATURES_BYTES_MAX, ENVELOPE_BYTES_MAX, Signed
from p2ptrain.run.organiser import said_by_organiser
from p2ptrain.run.published_run import Run
from p2ptrain.run.reading import plain
from p2ptrain.run.roles import READER, TRAINER, Role

KIND = "allowlist"
ALLOWLIST_PEERS_MAX = 4096
"""Maximum number of peers on a list. A node keeps track of at most this many peers, too."""

REVISIONS_MAX = 2048
"""Maximum number of peers with a revision. A revocation must stay on the list for ever, so a run
can revoke this many peers."""

REVISION_MAX = 2**31

ALLOWLIST_BYTES_MAX = (
    54 * ALLOWLIST_PEERS_MAX + 60 * REVISIONS_MAX + 2 * ENVELOPE_BYTES_MAX + COSIGNATURES_BYTES_MAX
)
"""Maximum length of a signed list. Each peer takes 54 bytes: an id of 52 letters, and a msgpack
header of two bytes. A revision takes up to six more. The rest is the envelope of the signatures and
the list's other fields."""

SEQUENCE_MAX = 2**53
_OPTIONAL = ("readers", "revisions")

Standing = tuple[int, Role | None]
"""A peer's revision and its role. The role of a revoked peer is None."""


@dataclass(frozen=True, slots=True)
class Allowlist:
    """`peers` may train, and `readers` may only read. Both, and `revisions` (pairs of a peer and
    its revision, if that is not 0), are sorted and unique, so that equal lists have equal bytes.
    Create one with `of`."""

    run: RunId
    sequence: int
    peers: tuple[PeerId, ...]
    readers: tuple[PeerId, ...] = ()
    revisions: tuple[tuple[PeerId, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.sequence <= SEQUENCE_MAX:
            raise ValueError(f"the sequence number is {self.sequence}, not 1 to {SEQUENCE_MAX}")
        number = len(self.peers) + len(self.readers)
        if number > ALLOWLIST_PEERS_MAX:
            raise ValueError(f"{number} peers exceed the limit of {ALLOWLIST_PEERS_MAX}")
        for peer in (*self.peers, *self.readers):
            if not is_peer_id(peer):
                raise ValueError(f"{str(peer)[:80]!r} is not a peer id")
        for listed in (self.peers, self.readers):
            if list(listed) != sorted(set(listed)):
                raise ValueError("the peers are not sorted, or one is listed twice")
        admitted = {*self.peers, *self.readers}
        if len(admitted) < number:
            raise ValueError("a reader is listed as a trainer too")
        object.__setattr__(self, "revisions", _checked(self.revisions, admitted))

    @classmethod
    def of(cls, run: RunId, sequence: int, peers: Iterable[PeerId]) -> Allowlist:
        """Return a list with these trainers."""
        return cls(run, sequence, tuple(sorted(set(peers))))

    @classmethod
    def _of(cls, run: RunId, sequence: int, standings: Mapping[PeerId, Standing]) -> Allowlist:
        known = sorted(standings.items())
        return cls(
            run,
            sequence,
            tuple(peer for peer, (_, role) in known if role == TRAINER),
            tuple(peer for peer, (_, role) in known if role == READER),
            tuple((peer, revision) for peer, (revision, _) in known if revision),
        )

    @property
    def roles(self) -> dict[PeerId, Role]:
        """The role of each admitted peer."""
        return dict.fromkeys(self.peers, TRAINER) | dict.fromkeys(self.readers, READER)

    @property
    def revoked(self) -> frozenset[PeerId]:
        """The peers that the list revokes, whatever a delegate says."""
        return frozenset(peer for peer, revision in self.revisions if revision % 2)

    def _standings(self) -> dict[PeerId, Standing]:
        roles, revisions = self.roles, dict(self.revisions)
        return {
            peer: (revisions.get(peer, 0), roles.get(peer)) for peer in roles.keys() | revisions
        }

    def with_peer(
        self, peer: PeerId, role: Role = TRAINER, *, tracks: bool | None = None
    ) -> Allowlist:
        """Return the next list, with `peer` on it. `tracks`: whether the list counts revisions; by
        default, if it does so already."""
        tracks = bool(self.revisions) if tracks is None else tracks
        standings = self._standings()
        revision, before = standings.get(peer, (0, None))
        if before is None:
            revision += revision % 2
        elif before != role and tracks:
            revision += 2
        return self._of(self.run, self.sequence + 1, {**standings, peer: (revision, role)})

    def without_peer(self, peer: PeerId, *, tracks: bool | None = None) -> Allowlist:
        """Return the next list, without `peer`. If the list counts revisions (see `with_peer`), it
        says that `peer` is revoked, even if `peer` was not on it."""
        tracks = bool(self.revisions) if tracks is None else tracks
        standings = self._standings()
        revision, _ = standings.pop(peer, (0, None))
        if tracks:
            standings[peer] = revision + 1 - revision % 2, None
        return self._of(self.run, self.sequence + 1, standings)

    def merged(self, other: Allowlist) -> Allowlist:
        """Return the list after the newer of both, with the newer decision about each peer."""
        both = self._standings()
        for peer, standing in other._standings().items():
            both[peer] = max(both.get(peer, standing), standing, key=_rank)
        return self._of(self.run, max(self.sequence, other.sequence) + 1, both)

    def covers(self, other: Allowlist) -> bool:
        """Return whether this list contains every decision of `other`, or a newer one."""
        return self.merged(other)._standings() == self._standings()

    def numbered(self, sequence: int) -> Allowlist:
        """Return the same list with another number."""
        return replace(self, sequence=sequence)


def _rank(standing: Standing) -> tuple[int, bool]:
    """Return what decides between two standings of a peer: the higher revision wins. If two
    organisers gave a peer different roles at the same time, the peer is a reader."""
    revision, role = standing
    return revision, role == READER


def _checked(found: object, admitted: set[PeerId]) -> tuple[tuple[PeerId, int], ...]:
    """Return the revisions in `found` as pairs. Raises ValueError: they are malformed."""
    revisions = list[tuple[PeerId, int]]()
    assert isinstance(found, tuple)
    if len(found) > REVISIONS_MAX:
        raise ValueError(f"{len(found)} revisions exceed the limit of {REVISIONS_MAX}")
    for pair in found:
        match pair:
            case [str(peer), int(revision)] if is_peer_id(peer) and type(revision) is int:
                revisions.append((PeerId(peer), revision))
            case _:
                raise ValueError("a revision is malformed")
    if revisions != sorted(revisions) or len(dict(revisions)) < len(revisions):
        raise ValueError("the revisions are not sorted, or a peer has two")
    for peer, revision in revisions:
        if not 0 < revision <= REVISION_MAX or (revision % 2 == 0) != (peer in admitted):
            raise ValueError(f"revision {revision} of a peer does not fit the list")
    return tuple(revisions)


@dataclass(frozen=True, slots=True)
class SignedAllowlist:
    """A list with its signatures, as sent to peers and stored in `run/allowlist.signed` in a node's
    home (the folder with its files)."""

    allowlist: Allowlist
    signed: Signed

    @classmethod
    def publish(cls, identity: Identity, allowlist: Allowlist) -> SignedAllowlist:
        """Sign `allowlist`. In a run whose lists need several signatures, this is a proposal."""
        payload = pack(_payload(allowlist))
        return cls(allowlist, Signed.by(identity, KIND, payload))

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, run: Run, *, signatures_min: int | None = None
    ) -> SignedAllowlist:
        """Return the list for `run` in `data`, which may come from any peer. `signatures_min` is by
        default the number that the manifest requires.

        Raises:
            RunMismatch: it is a valid list of another run.
            RemoteProtocolError: it is too long, malformed, altered, or not signed by enough of the
                run's organisers.
        """
        required = run.manifest.organisers.signatures_min
        allowlist, signed = said_by_organiser(
            Allowlist,
            data,
            run,
            kind=KIND,
            bytes_max=ALLOWLIST_BYTES_MAX,
            code="ALLOWLIST-SIGNER",
            signatures_min=required if signatures_min is None else signatures_min,
            optional=_OPTIONAL,
        )
        return cls(allowlist, signed)

    def to_bytes(self) -> bytes:
        return self.signed.to_bytes()

    def replaces(self, current: SignedAllowlist | None) -> bool:
        """Return whether a peer that has `current` should replace it with this list. The answer is
        the same in every order of arrival, so all peers end up with the same list."""
        if current is None:
            return True
        mine, other = self.allowlist.sequence, current.allowlist.sequence
        return mine > other or (mine == other and self.signed.digest < current.signed.digest)


def _payload(allowlist: Allowlist) -> dict[str, object]:
    value = plain(allowlist, optional=_OPTIONAL)
    if allowlist.revisions:
        value["revisions"] = [list(pair) for pair in allowlist.revisions]
    return value

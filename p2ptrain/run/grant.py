"""A delegate's signed decision that a volunteer may take part, and who is a delegate.

    organisers ── amendment: these members may admit ──► all, agreed in the ledger
    delegate ── grant: this peer may take part ──► all

An amendment names all delegates (`Amendment.admitters`). A grant counts while its signer is a
delegate, without interruption since the amendment that the grant names. So a former delegate cannot
make grants with an earlier date. If it becomes a delegate again, its old grants stay invalid.

A delegate numbers its grants from 1 on, so their number is bounded, and peers that hold different
grants end up with the same ones. If a delegate gives two grants the same number, the one with the
smaller digest counts.

This module does not know which amendments are agreed, or how grants are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RunMismatch
from p2ptrain.identity import Identity, is_peer_id
from p2ptrain.ids import PeerId, RunId, is_digest
from p2ptrain.run.amendment import NUMBER_MAX, Amendment
from p2ptrain.run.envelope import Signed, documents_in
from p2ptrain.run.published_run import Run
from p2ptrain.run.reading import from_plain, plain
from p2ptrain.run.roles import READER, ROLES, TRAINER, Role

KIND = "grant"
GRANT_BYTES_MAX = 512
GRANTS_PER_DELEGATE_MAX = 64
"""Maximum number of grants of one delegate under one amendment. An organiser can take the admitted
peers over into the allowlist, and delegate again with a new amendment."""

GRANTS_MAX = 512
"""Maximum number of grants that a node keeps. They take about 180 kB, and a newcomer gets all of
them."""

GRANTS_BYTES_MAX = GRANTS_MAX * (GRANT_BYTES_MAX + 8)
UNIX_MAX = 2**40

Delegations = Mapping[PeerId, frozenset[int]]
"""For each delegate, the numbers of the amendments under which its grants count."""


@dataclass(frozen=True, slots=True)
class Grant:
    """`amendment` is the number of an amendment that names the signer as a delegate. `number`
    counts the signer's grants under that amendment."""

    run: RunId
    peer: PeerId
    amendment: int
    number: int
    issued_unix: int
    role: str = TRAINER

    def __post_init__(self) -> None:
        if not is_digest(self.run):
            raise ValueError("the run is not a run id")
        if not is_peer_id(self.peer):
            raise ValueError(f"{str(self.peer)[:80]!r} is not a peer id")
        if not 0 < self.amendment <= NUMBER_MAX:
            raise ValueError("the number of the amendment is out of range")
        if not 1 <= self.number <= GRANTS_PER_DELEGATE_MAX:
            raise ValueError(f"number {self.number} is not 1 to {GRANTS_PER_DELEGATE_MAX}")
        if not 0 <= self.issued_unix <= UNIX_MAX:
            raise ValueError("the time of the grant is out of range")
        if self.role not in ROLES:
            raise ValueError(f"the role {self.role[:40]!r} is not known")


Place = tuple[int, int, PeerId]
"""The amendment and the number of a grant, and its signer. No two grants count for one place."""


@dataclass(frozen=True, slots=True)
class SignedGrant:
    """A grant with the signature of a delegate, or of a peer that claims to be one."""

    grant: Grant
    signed: Signed

    @classmethod
    def publish(cls, delegate: Identity, grant: Grant) -> SignedGrant:
        return cls(grant, Signed.by(delegate, KIND, pack(plain(grant))))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, run: Run) -> SignedGrant:
        """Return the grant for `run` in `data`, which may come from any peer.

        Raises:
            RunMismatch: it is a valid grant of another run.
            RemoteProtocolError: it is too long, malformed, or altered.
        """
        signed = Signed.from_bytes(data, kind=KIND, bytes_max=GRANT_BYTES_MAX)
        grant = from_plain(Grant, unpack(signed.payload, bytes_max=GRANT_BYTES_MAX), "the grant")
        if grant.run != run.id:
            raise RunMismatch(
                "this grant belongs to a different run",
                evidence=[f"it is for run {grant.run}", f"this is run {run.id}"],
            )
        return cls(grant, signed)

    @property
    def delegate(self) -> PeerId:
        return self.signed.signer

    @property
    def place(self) -> Place:
        return self.grant.amendment, self.grant.number, self.signed.signer

    def to_bytes(self) -> bytes:
        return self.signed.to_bytes()

    def counts(self, delegations: Delegations) -> bool:
        """Return whether the signer may make this grant."""
        return self.grant.amendment in delegations.get(self.signed.signer, frozenset())


def grants_in(data: bytes, run: Run) -> tuple[SignedGrant, ...]:
    """Return the grants for `run` in a list that may come from any peer.

    Raises RunMismatch, RemoteProtocolError: at least one grant is invalid, or there are too many.
    """
    items = documents_in(data, "grants", GRANTS_MAX, GRANTS_BYTES_MAX)
    return tuple(SignedGrant.from_bytes(item, run) for item in items)


def encode_grants(grants: Iterable[SignedGrant]) -> bytes:
    """Return the grants as bytes for `grants_in`."""
    return pack([each.to_bytes() for each in grants])


def delegations(amendments: Iterable[Amendment]) -> Delegations:
    """Return who may admit peers under `amendments`, which are in force, the oldest first."""
    found: dict[PeerId, frozenset[int]] = {}
    for each in amendments:
        if each.admitters is not None:
            found = {peer: found.get(peer, frozenset()) | {each.number} for peer in each.admitters}
    return found


def merged_grants(
    held: Iterable[SignedGrant], more: Iterable[SignedGrant], counts: Delegations
) -> tuple[SignedGrant, ...]:
    """Return one grant for each place, sorted by place, and at most GRANTS_MAX of them: first those
    that count. The result does not depend on the order in which grants arrive."""
    by_place: dict[Place, SignedGrant] = {}
    for each in (*held, *more):
        known = by_place.get(each.place)
        if known is None or each.signed.digest < known.signed.digest:
            by_place[each.place] = each
    order = sorted(by_place.values(), key=lambda each: (not each.counts(counts), each.place))
    return tuple(sorted(order[:GRANTS_MAX], key=lambda each: each.place))


def granted_roles(grants: Iterable[SignedGrant], counts: Delegations) -> dict[PeerId, Role]:
    """Return the role of each peer that a grant admits. If grants differ, the peer may train."""
    roles: dict[PeerId, Role] = {}
    for each in grants:
        if each.counts(counts):
            is_reader = each.grant.role == READER
            roles[each.grant.peer] = roles.get(each.grant.peer, READER) if is_reader else TRAINER
    return roles

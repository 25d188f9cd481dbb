"""A simulated node's disk, which survives crashes, and the cheap signatures of simulated peers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Certified, Terms
from p2ptrain.ledger.history.base import Base
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.messages.peer_reports import SnapshotTaken
from p2ptrain.proofs.claims import Claim


@dataclass(slots=True)
class SimDisk:
    """`base` is the Commit and state at which a pruned chain begins; None if the chain begins at
    genesis. `chain` contains the entries after it. `snapshot` is the newest of the `written`
    snapshots, at which a restart can begin. `serial` is the number of the newest of the `claims`
    that this peer has made, which are kept by digest."""

    chain: list[Certified] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    updates: set[Digest] = field(default_factory=set)
    base: Base | None = None
    snapshot: SnapshotTaken | None = None
    written: set[SnapshotTaken] = field(default_factory=set)
    terms: set[Terms] = field(default_factory=set)
    evidence: list[Evidence] = field(default_factory=list)
    serial: int = 0
    claims: dict[Digest, Claim] = field(default_factory=dict)

    @property
    def height(self) -> int:
        """The height of the last entry."""
        if self.chain:
            return self.chain[-1].entry.height
        return 0 if self.base is None else self.base.checkpoint.height

    def prune(self, base: Base) -> None:
        """Atomically drop the entries up to `base`."""
        height = base.checkpoint.height
        self.chain = [each for each in self.chain if each.entry.height > height]
        self.base = base

    def append_record(self, record: bytes) -> None:
        self.records.append(record)


def signer(peer: PeerId) -> Callable[[bytes], bytes]:
    """Return a function that makes cheap signatures. The simulator does not attack signatures."""
    return lambda message: signature_of(peer, message)


@lru_cache(maxsize=1024)
def signature_of(peer: PeerId, message: bytes) -> bytes:
    return hashlib.sha256(b"secret of " + peer.encode() + message).digest()[:16]


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    return signature == signature_of(peer, message)


def digest(text: str) -> Digest:
    return Digest(hashlib.sha256(text.encode()).hexdigest())


def theta_after(theta: Digest, update: Digest) -> Digest:
    """Return the simulated outer state: a digest of the applied updates in their order."""
    return digest(theta + update)

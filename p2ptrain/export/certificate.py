"""The certificate of exported weights, with which anybody can check them without the run's home.

A Commit in the ledger names a snapshot by its digest, and its certificate is the signatures of a
quorum. The snapshot's digest is that of its list of chunks, and the chunks are θ and then m. So the
weights can be checked against the list. The chunk with the end of θ also contains the beginning of
m, which an exported folder lacks otherwise; these bytes are kept with the list.

`p2ptrain export` writes both parts next to weights that are certified themselves, in the file
`p2ptrain.certificate`. A proof of a text contains the first part only, which takes a few kilobytes.

The certificate alone does not prove that its signers were voters of the run: that depends on all
entries before. Somebody who has the run's ledger can compare the entry with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from blake3 import blake3

from p2ptrain.archive.chain_log import entry_bytes, entry_of
from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import ManifestInvalid, RemoteProtocolError
from p2ptrain.identity import verify
from p2ptrain.ids import Digest, PeerId, is_digest
from p2ptrain.ledger.chain.values import Certified, Commit, LineId, SnapshotRef, vote_message
from p2ptrain.run import Run
from p2ptrain.state import SNAPSHOT, snapshot_meta
from p2ptrain.store import CHUNK_BYTES_MAX, BlobManifest
from p2ptrain.trainer.formats.shapes import layout_of

FILE_NAME = "p2ptrain.certificate"
TOKENIZER_KIND = "tokenizer"
"""The kind of the blob that contains a run's tokenizer."""

VERSION = 1
CERTIFICATE_BYTES_MAX = 2 * 2**20
"""Maximum size of a snapshot's certificate. A manifest takes at most half of that, and so does an
entry of a run with the most members."""

FILE_BYTES_MAX = CERTIFICATE_BYTES_MAX + 2 * CHUNK_BYTES_MAX + 1024
"""Maximum size of the file: a certificate, a list of chunks, and the rest of a chunk."""


@dataclass(frozen=True, slots=True)
class CertifiedWeights:
    """The weights that a certificate names: θ before outer step `step` of `run`. `height` and
    `entry` are those of the ledger entry; 0 and None for the first weights, which the run's
    manifest names."""

    run: Run
    step: int
    snapshot: Digest
    height: int
    entry: Digest | None
    signed_by: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class SnapshotCertificate:
    """Signed documents that name a snapshot. `manifest` is the run's signed manifest. `entry` is a
    certified Commit as in the log of a ledger, and `line` is the line that its voters decided; it
    is empty if the manifest names the snapshot."""

    manifest: bytes
    line: str
    entry: bytes

    @classmethod
    def of(cls, run: Run, named: tuple[LineId, Certified] | None) -> SnapshotCertificate:
        """Return the certificate of the snapshot that the entry `named` names, or the manifest."""
        if named is None:
            return cls(run.to_bytes(), run.id, b"")
        line, certified = named
        return cls(run.to_bytes(), line, entry_bytes(certified))

    def to_bytes(self) -> bytes:
        parts = {"manifest": self.manifest, "line": self.line, "entry": self.entry}
        return pack({"version": VERSION, **parts})

    @classmethod
    def from_bytes(cls, data: bytes) -> SnapshotCertificate:
        """Decode a certificate, which may come from anybody. Raises RemoteProtocolError."""
        value = unpack(data, bytes_max=CERTIFICATE_BYTES_MAX)
        found = fields(value, version=int, manifest=bytes, line=str, entry=bytes)
        manifest, line, entry = found["manifest"], found["line"], found["entry"]
        if found["version"] != VERSION or not is_digest(line):
            raise RemoteProtocolError("a certificate of a snapshot has an unknown form")
        assert isinstance(manifest, bytes)
        assert isinstance(line, str)
        assert isinstance(entry, bytes)
        return cls(manifest, line, entry)

    def verified(self) -> CertifiedWeights:
        """Check all signatures, and return the weights that they certify.

        Raises:
            RemoteProtocolError: a document is malformed, or a signature is not valid.
            VersionMismatch: the run is for a different version of p2ptrain.
        """
        run = Run.from_bytes(self.manifest)
        if not self.entry:
            organiser = (run.manifest.organiser,)
            return CertifiedWeights(run, 0, run.manifest.genesis, 0, None, organiser)
        certified = entry_of(self.entry)
        named = _snapshot_in(certified)
        _check_votes(Digest(self.line), certified)
        entry = certified.entry
        voters = tuple(sorted(certified.certificate.voters))
        return CertifiedWeights(run, named.step, named.digest, entry.height, entry.digest, voters)


def _snapshot_in(certified: Certified) -> SnapshotRef:
    value = certified.entry.value
    if not isinstance(value, Commit) or value.snapshot is None:
        raise RemoteProtocolError("the entry of a certificate does not name a snapshot")
    return value.snapshot


def _check_votes(line: LineId, certified: Certified) -> None:
    """Raise RemoteProtocolError unless every vote is for this entry and has a valid signature."""
    entry, certificate = certified.entry, certified.certificate
    named = (certificate.height, certificate.entry)
    if named != (entry.height, entry.digest) or not certificate.votes:
        raise RemoteProtocolError("a certificate is for a different entry")
    message = vote_message(line, entry.height, certificate.round, entry.digest)
    for voter, signature in certificate.votes:
        if not verify(voter, message, signature):
            raise RemoteProtocolError(f"the signature of {voter} on entry {entry.height} is wrong")


@dataclass(frozen=True, slots=True)
class WeightsCertificate:
    """A certificate, and what is needed to check weights against it: the snapshot's list of chunks,
    and the bytes of m in the chunk with the end of θ."""

    certificate: SnapshotCertificate
    chunks: bytes
    rest: bytes

    def to_bytes(self) -> bytes:
        parts = {"certificate": self.certificate.to_bytes(), "chunks": self.chunks}
        return pack({"version": VERSION, **parts, "rest": self.rest})

    @classmethod
    def from_bytes(cls, data: bytes) -> WeightsCertificate:
        """Decode the file in a folder, which may come from anybody. Raises RemoteProtocolError."""
        value = unpack(data, bytes_max=FILE_BYTES_MAX)
        found = fields(value, version=int, certificate=bytes, chunks=bytes, rest=bytes)
        if found["version"] != VERSION:
            raise RemoteProtocolError("a certificate of weights has an unknown form")
        certificate, chunks, rest = found["certificate"], found["chunks"], found["rest"]
        assert isinstance(certificate, bytes)
        assert isinstance(chunks, bytes)
        assert isinstance(rest, bytes)
        return cls(SnapshotCertificate.from_bytes(certificate), chunks, rest)

    def names(self, weights: CertifiedWeights, theta: Iterable[bytes | memoryview]) -> bool:
        """Return whether `theta`, the bytes of θ in pieces, is exactly the certified θ.

        Raises RemoteProtocolError: the list of chunks is not that of the snapshot.
        """
        try:
            blob = BlobManifest.from_wire(self.chunks)
        except ManifestInvalid as exc:
            raise RemoteProtocolError(exc.what) from exc
        manifest = weights.run.manifest
        numel = layout_of(manifest.model).numel
        meta = snapshot_meta(
            weights.run.id if weights.step else None, weights.step, manifest.layout
        )
        ours = blob.kind == SNAPSHOT and dict(blob.meta) == {"numel": numel, **meta}
        if blob.digest != weights.snapshot or not ours or blob.size != 8 * numel:
            raise RemoteProtocolError("the list of chunks is not that of the certified snapshot")
        theta_bytes, held = 4 * numel, blob.chunk_bytes
        if len(self.rest) != min(-theta_bytes % held, blob.size - theta_bytes):
            raise RemoteProtocolError("the end of a certificate of weights is missing")
        count = -(-theta_bytes // held)
        return tuple(_chunk_digests(chain(theta, [self.rest]), held)) == blob.chunks[:count]


def has_tokenizer(run: Run, data: bytes) -> bool:
    """Return whether `data` is the tokenizer that the run's manifest names."""
    for chunk_bytes in {run.manifest.policy.chunk_bytes, CHUNK_BYTES_MAX}:
        chunks = tuple(_chunk_digests([data], chunk_bytes))
        blob = BlobManifest(TOKENIZER_KIND, len(data), chunk_bytes, chunks, {})
        if blob.digest == run.manifest.tokenizer:
            return True
    return False


def _chunk_digests(pieces: Iterable[bytes | memoryview], chunk_bytes: int) -> Iterator[Digest]:
    """Yield the digests of the chunks into which the bytes of all `pieces` are cut."""
    hasher, filled = blake3(), 0
    for piece in pieces:
        left = memoryview(piece)
        while left:
            taken = left[: chunk_bytes - filled]
            hasher.update(taken)
            filled, left = filled + len(taken), left[len(taken) :]
            if filled == chunk_bytes:
                yield Digest(hasher.hexdigest())
                hasher, filled = blake3(), 0
    if filled:
        yield Digest(hasher.hexdigest())

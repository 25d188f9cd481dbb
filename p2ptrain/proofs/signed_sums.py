"""The statement with which a peer answers for the sums that it sent in a reduce.

A peer signs one statement for each part of which it sends a sum, and for the mean of its own part.
The statement names the leaves: the digests of the segments, in order (`p2ptrain.ring`). So one
signature covers any number of bytes, and a single segment is enough to compare the statement with
what the contributions make it. The Roster entry also fixes the run, the outer step and the attempt,
so the statement names only this entry.

Each receiver verifies the signature before it reports its result, and keeps the statements for two
outer steps (`p2ptrain/node/averages`). Two valid statements of one peer about the same elements
with different leaves prove that the peer lied, whatever the contributions are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import Digest, PeerId, is_digest
from p2ptrain.ledger.chain.signatures import Sign, Verify
from p2ptrain.ring import LEAF_BYTES, SIGNATURE_BYTES, SignedRun

LEAVES_MAX = 16_384
"""Maximum number of segments of a part that a statement covers: 16 GiB of segments of 1 MiB."""

REQUEST_BYTES_MAX = 256
REPLY_BYTES_MAX = 1 << 20
"""Maximum size of the statements that one reply shows. With the schedule "direct", the owner of a
part shows one statement of each other participant. All of them together have about one leaf for
each MiB of the update, and 200 bytes for each participant."""

_DOMAIN = b"p2ptrain sum 1\n"
_NUMBER_MAX = 2**48


@dataclass(frozen=True, slots=True)
class SumStatement:
    """Peer `peer` made a sum of the elements [start, stop) in the reduce of `roster`, or the mean
    of its part. `leaves` are the blake3 digests of its segments.

    Raises RemoteProtocolError: a field has an invalid value.
    """

    roster: Digest
    peer: PeerId
    start: int
    stop: int
    leaves: bytes

    def __post_init__(self) -> None:
        if not is_digest(self.roster) or not is_peer_id(self.peer):
            raise RemoteProtocolError("a statement about a sum names an invalid digest or peer")
        if not 0 <= self.start < self.stop <= _NUMBER_MAX:
            raise RemoteProtocolError("a statement about a sum names an invalid range")
        if not 0 < len(self.leaves) <= LEAVES_MAX * LEAF_BYTES or len(self.leaves) % LEAF_BYTES:
            raise RemoteProtocolError("a statement about a sum has an invalid number of leaves")

    @property
    def segments(self) -> int:
        return len(self.leaves) // LEAF_BYTES

    def leaf(self, index: int) -> bytes:
        return self.leaves[LEAF_BYTES * index : LEAF_BYTES * (index + 1)]

    def contradicts(self, other: SumStatement) -> bool:
        """Return whether the two statements prove that their peer lied. The ranges of a reduce do
        not overlap, so statements about different ranges that overlap contradict each other too.
        """
        same_reduce = (self.roster, self.peer) == (other.roster, other.peer)
        overlap = self.start < other.stop and other.start < self.stop
        return same_reduce and overlap and self != other

    @property
    def message(self) -> bytes:
        """The bytes that the peer signs. They have the same length for any number of segments."""
        digest, where = blake3(self.leaves).hexdigest(), (self.start, self.stop)
        return _DOMAIN + pack([self.roster, self.peer, *where, digest])


@dataclass(frozen=True, slots=True)
class SumSigner:
    """Signs our sums of the reduce of `roster`, and verifies those of its other participants."""

    roster: Digest
    me: PeerId
    signs: Sign
    verify: Verify

    def sign(self, start: int, stop: int, leaves: bytes) -> bytes:
        return self.signs(SumStatement(self.roster, self.me, start, stop, leaves).message)

    def is_signed(
        self, peer: PeerId, start: int, stop: int, leaves: bytes, signature: bytes
    ) -> bool:
        try:
            stated = SumStatement(self.roster, peer, start, stop, leaves)
        except RemoteProtocolError:
            return False
        return self.verify(peer, stated.message, signature)


@dataclass(frozen=True, slots=True)
class SumsRequest:
    """Asks a participant of the reduce of `roster` for the statements that it keeps about the
    elements [start, stop).

    Raises RemoteProtocolError: a field has an invalid value.
    """

    roster: Digest
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not is_digest(self.roster) or not 0 <= self.start < self.stop <= _NUMBER_MAX:
            raise RemoteProtocolError("a request for sums is malformed")

    def encode(self) -> bytes:
        return pack({"roster": self.roster, "start": self.start, "stop": self.stop})


def decode_request(data: bytes) -> SumsRequest:
    """Decode a request from an untrusted peer. Raises RemoteProtocolError."""
    told = fields(unpack(data, bytes_max=REQUEST_BYTES_MAX), roster=str, start=int, stop=int)
    start, stop = told["start"], told["stop"]
    assert isinstance(start, int)
    assert isinstance(stop, int)
    return SumsRequest(Digest(str(told["roster"])), start, stop)


def encode_runs(runs: Sequence[SignedRun], *, bytes_max: int = REPLY_BYTES_MAX) -> bytes:
    """Encode what a participant keeps, as far as it fits."""
    plain: list[dict[str, object]] = []
    size = 16
    for each in runs:
        size += len(each.leaves) + SIGNATURE_BYTES + len(each.peer) + 96
        if size > bytes_max:
            break
        plain.append(
            {
                "peer": each.peer,
                "start": each.start,
                "stop": each.stop,
                "leaves": each.leaves,
                "signature": each.signature,
            }
        )
    return pack({"runs": plain})


def decode_runs(data: bytes, *, bytes_max: int = REPLY_BYTES_MAX) -> tuple[SignedRun, ...]:
    """Decode signed runs from an untrusted peer. The signatures are not verified. Raises
    RemoteProtocolError."""
    given = fields(unpack(data, bytes_max=bytes_max), runs=list)["runs"]
    assert isinstance(given, list)
    return tuple(map(_run, given))


def verified(run: SignedRun, roster: Digest, verify: Verify) -> SumStatement:
    """Return the statement in `run`.

    Raises RemoteProtocolError: it is invalid, or its peer did not sign it.
    """
    stated = SumStatement(roster, run.peer, run.start, run.stop, run.leaves)
    if not verify(run.peer, stated.message, run.signature):
        raise RemoteProtocolError("the signature of a sum is wrong", code="SIGNATURE")
    return stated


def _run(plain: object) -> SignedRun:
    told = fields(plain, peer=str, start=int, stop=int, leaves=bytes, signature=bytes)
    start, stop, leaves, signature = (told[it] for it in ("start", "stop", "leaves", "signature"))
    assert isinstance(start, int)
    assert isinstance(stop, int)
    assert isinstance(leaves, bytes)
    assert isinstance(signature, bytes)
    if len(signature) != SIGNATURE_BYTES:
        raise RemoteProtocolError("a signature of a sum has a wrong length")
    return SignedRun(PeerId(str(told["peer"])), start, stop, leaves, signature)

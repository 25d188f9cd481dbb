"""The statement with which a peer answers for a sum that it sent in a reduce.

A peer signs the digest of each segment's sum that it sends, or of the mean if it owns the part. The
receiver keeps the statement and the bytes, and can show both to an auditor. The Roster entry also
fixes the run, the outer step and the attempt, so the statement names only this entry.

Two valid statements of one peer about the same elements with different digests prove that the peer
lied, whatever the contributions are. No node signs sums yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import Digest, PeerId, is_digest
from p2ptrain.ledger.chain.signatures import Sign, Verify

STATEMENT_BYTES_MAX = 512
"""Maximum size of a signed statement: two digests, a peer id, a signature, and two numbers."""

_DOMAIN = b"p2ptrain sum 1\n"
_NUMBER_MAX = 2**48


@dataclass(frozen=True, slots=True)
class SumStatement:
    """Peer `peer` made a sum of the elements [start, stop) in the reduce of `roster`, and `digest`
    is the blake3 of the sum's bytes.

    Raises RemoteProtocolError: a field has an invalid value.
    """

    roster: Digest
    peer: PeerId
    start: int
    stop: int
    digest: Digest

    def __post_init__(self) -> None:
        if not is_digest(self.roster) or not is_digest(self.digest) or not is_peer_id(self.peer):
            raise RemoteProtocolError("a statement about a sum names an invalid digest or peer")
        if not 0 <= self.start < self.stop <= _NUMBER_MAX:
            raise RemoteProtocolError("a statement about a sum names an invalid range")

    @classmethod
    def of(
        cls, roster: Digest, peer: PeerId, start: int, stop: int, payload: bytes
    ) -> SumStatement:
        return cls(roster, peer, start, stop, _digest_of(payload))

    def is_about(self, payload: bytes) -> bool:
        return self.digest == _digest_of(payload)

    def contradicts(self, other: SumStatement) -> bool:
        """Return whether the two statements prove that their peer lied. Segments of a reduce do not
        overlap, so statements about different ranges that overlap contradict each other too.
        """
        same_reduce = (self.roster, self.peer) == (other.roster, other.peer)
        overlap = self.start < other.stop and other.start < self.stop
        return same_reduce and overlap and self != other

    def signed(self, sign: Sign) -> bytes:
        """Return the statement with its signature, for sending."""
        return pack({**self._plain(), "signature": sign(self._message())})

    def _plain(self) -> dict[str, object]:
        return {
            "roster": self.roster,
            "peer": self.peer,
            "start": self.start,
            "stop": self.stop,
            "digest": self.digest,
        }

    def _message(self) -> bytes:
        return _DOMAIN + pack(self._plain())


def read_statement(data: bytes, verify: Verify) -> SumStatement:
    """Return the statement in `data`, which may come from anybody.

    Raises RemoteProtocolError: it is too long, malformed, or its peer did not sign it.
    """
    value = unpack(data, bytes_max=STATEMENT_BYTES_MAX)
    told = fields(value, roster=str, peer=str, start=int, stop=int, digest=str, signature=bytes)
    start, stop, signature = told["start"], told["stop"], told["signature"]
    assert isinstance(start, int)
    assert isinstance(stop, int)
    assert isinstance(signature, bytes)
    stated = SumStatement(
        Digest(str(told["roster"])),
        PeerId(str(told["peer"])),
        start,
        stop,
        Digest(str(told["digest"])),
    )
    if not verify(stated.peer, stated._message(), signature):
        raise RemoteProtocolError("the signature of a sum is wrong", code="SIGNATURE")
    return stated


def _digest_of(payload: bytes) -> Digest:
    return Digest(blake3(payload).hexdigest())

"""The signed statement of a participant about the sketch of its contribution.

A statement contains one sketch for each part of the vector, so that the sum of all statements can
be compared with the update part by part. The sketch of the whole vector is their sum. The Roster
entry that gave the seed also fixes the run, the outer step and the attempt, so the statement names
only this entry.

The sums are exact integers. So anybody with the contribution can recompute the sketch, and a
statement that differs in one bit from the sketch of the committed contribution proves that its
signer lied. Participants exchange statements in runs with claims.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import Digest, PeerId, is_digest
from p2ptrain.kernels import WIDTH, Sums
from p2ptrain.ledger.chain.signatures import Sign, Verify

PARTS_MAX = 16
"""Maximum number of parts in a statement, so that a statement takes at most 32 KiB."""

SKETCH_BYTES = 8 * WIDTH
STATEMENT_BYTES_MAX = PARTS_MAX * (SKETCH_BYTES + 3) + 512
"""Maximum size of a signed statement. Everything except the sketches takes about 300 bytes."""

_DOMAIN = b"p2ptrain sketch 1\n"


@dataclass(frozen=True, slots=True)
class StatedSketch:
    """The sketches of the parts of `peer`'s contribution, in order; each is 256 signed integers of
    8 bytes, little-endian. `roster` is the digest of the Roster entry.

    Raises RemoteProtocolError: a field has an invalid value.
    """

    roster: Digest
    peer: PeerId
    parts: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not is_digest(self.roster) or not is_peer_id(self.peer):
            raise RemoteProtocolError("a sketch names an invalid roster or peer")
        whole = all(type(part) is bytes and len(part) == SKETCH_BYTES for part in self.parts)
        if not 1 <= len(self.parts) <= PARTS_MAX or not whole:
            raise RemoteProtocolError("the parts of a sketch are malformed")

    @classmethod
    def of(cls, roster: Digest, peer: PeerId, sketches: list[Sums]) -> StatedSketch:
        return cls(roster, peer, tuple(each.astype("<i8").tobytes() for each in sketches))

    def sums_of_part(self, part: int) -> Sums:
        return np.frombuffer(self.parts[part], "<i8").astype(np.int64)

    @property
    def sums(self) -> Sums:
        """The sketch of the whole vector. Hostile sums can wrap around; then the sketch is merely
        wrong, as any other wrong sketch is."""
        parts = [self.sums_of_part(part) for part in range(len(self.parts))]
        return np.asarray(np.sum(parts, axis=0), np.int64)

    def signed(self, sign: Sign) -> bytes:
        """Return the statement with its signature, for sending."""
        return pack({**self._plain(), "signature": sign(self._message())})

    def _plain(self) -> dict[str, object]:
        return {"roster": self.roster, "peer": self.peer, "parts": list(self.parts)}

    def _message(self) -> bytes:
        return _DOMAIN + pack(self._plain())


def read_statement(data: bytes, verify: Verify) -> StatedSketch:
    """Return the statement in `data`, which may come from anybody.

    Raises RemoteProtocolError: it is too long, malformed, or its peer did not sign it.
    """
    value = unpack(data, bytes_max=STATEMENT_BYTES_MAX)
    told = fields(value, roster=str, peer=str, parts=list, signature=bytes)
    parts = told["parts"]
    assert isinstance(parts, list)
    stated = StatedSketch(Digest(str(told["roster"])), PeerId(str(told["peer"])), tuple(parts))
    signature = told["signature"]
    assert isinstance(signature, bytes)
    if not verify(stated.peer, stated._message(), signature):
        raise RemoteProtocolError("the signature of a sketch is wrong", code="SIGNATURE")
    return stated

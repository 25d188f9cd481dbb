"""A volunteer's signed request to be put on the allowlist.

The signature proves that the sender holds the key of the peer id that asks to be admitted. So an
organiser who approves the request admits only the holder of that key.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId, RunId, is_digest
from p2ptrain.run.envelope import Signed
from p2ptrain.run.reading import from_plain, plain

KIND = "join-request"
BYTES_MAX = 2048
NOTE_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A request to join. `note` is an optional message to the organiser."""

    run: RunId
    peer: PeerId
    created_unix: int
    note: str = ""

    def __post_init__(self) -> None:
        if not is_digest(self.run):
            raise ValueError("the run is not a run id")
        if len(self.note) > NOTE_CHARACTERS_MAX or not self.note.isprintable():
            most = f"{NOTE_CHARACTERS_MAX} printable characters"
            raise ValueError(f"the note must be one line of at most {most}")
        if self.created_unix < 0:
            raise ValueError("the time is before 1970")

    def to_bytes(self, identity: Identity) -> bytes:
        """Return the request, signed by `identity`, which must be the requesting peer."""
        assert identity.peer == self.peer
        return Signed.by(identity, KIND, pack(plain(self))).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> JoinRequest:
        """Return the request in `data`. Raises RemoteProtocolError if it is too long, malformed, or
        not signed by the peer that it names."""
        signed = Signed.from_bytes(data, kind=KIND, bytes_max=BYTES_MAX)
        request = from_plain(cls, unpack(signed.payload, bytes_max=BYTES_MAX), "the join request")
        if request.peer != signed.signer:
            what = "the join request was not signed by the peer that it names"
            raise RemoteProtocolError(what, code="SIGNATURE")
        return request

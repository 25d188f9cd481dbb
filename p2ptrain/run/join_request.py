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
from p2ptrain.run.stated_facts import is_word, with_facts, without_facts

KIND = "join-request"
BYTES_MAX = 2048
NOTE_CHARACTERS_MAX = 200
FACTS = ("device", "reach")


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A request to join. `note` is an optional message to the organiser. `token` is a signed token
    (`run/token`), and `proof` shows that the peer may use it; they are not checked here. A request
    without a token is encoded without these two fields, as earlier versions of p2ptrain did.

    `device` and `reach` are words with which the peer describes its machine; "" if it does not say
    so. They are encoded at the end of the note (`stated_facts`), so that earlier versions can read
    the request. They are left out if the note is too long for them.
    """

    run: RunId
    peer: PeerId
    created_unix: int
    note: str = ""
    token: bytes = b""
    proof: bytes = b""
    device: str = ""
    reach: str = ""

    def __post_init__(self) -> None:
        if not is_digest(self.run):
            raise ValueError("the run is not a run id")
        if len(self.note) > NOTE_CHARACTERS_MAX or not self.note.isprintable():
            most = f"{NOTE_CHARACTERS_MAX} printable characters"
            raise ValueError(f"the note must be one line of at most {most}")
        if self.created_unix < 0:
            raise ValueError("the time is before 1970")
        if bool(self.token) != bool(self.proof):
            raise ValueError("a token and its proof belong together")
        if not all(not each or is_word(each) for each in (self.device, self.reach)):
            raise ValueError("the device or the reach is not a word")

    def to_bytes(self, identity: Identity) -> bytes:
        """Return the request, signed by `identity`, which must be the requesting peer."""
        assert identity.peer == self.peer
        value = plain(self)
        facts = {name: str(value.pop(name)) for name in FACTS}
        value["note"] = with_facts(self.note, facts, characters_max=NOTE_CHARACTERS_MAX)
        if not self.token:
            del value["token"], value["proof"]
        return Signed.by(identity, KIND, pack(value)).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> JoinRequest:
        """Return the request in `data`. Raises RemoteProtocolError if it is too long, malformed, or
        not signed by the peer that it names."""
        signed = Signed.from_bytes(data, kind=KIND, bytes_max=BYTES_MAX)
        value = unpack(signed.payload, bytes_max=BYTES_MAX)
        if isinstance(value, dict) and value.keys().isdisjoint({"token", "proof"}):
            value = {**value, "token": b"", "proof": b""}
        elif isinstance(value, dict) and not value.get("token"):
            raise RemoteProtocolError("the join request has an empty token")
        request = from_plain(cls, _with_facts_apart(value), "the join request")
        if request.peer != signed.signer:
            what = "the join request was not signed by the peer that it names"
            raise RemoteProtocolError(what, code="SIGNATURE")
        return request


def _with_facts_apart(value: object) -> object:
    """Return the fields of a request, with each fact of its note as a field of its own.

    Raises RemoteProtocolError: the request has such a field already."""
    if not isinstance(value, dict) or not isinstance(value.get("note"), str):
        return value  # The fields are checked later.
    if not value.keys().isdisjoint(FACTS):
        raise RemoteProtocolError("the join request has an unknown field")
    note, facts = value["note"], dict[str, str]()
    if len(note) <= NOTE_CHARACTERS_MAX:
        note, facts = without_facts(note)
    return {**value, "note": note, **{name: facts.get(name, "") for name in FACTS}}

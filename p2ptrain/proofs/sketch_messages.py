"""The messages with which two participants swap claims and stated sketches of an attempt.

    request    {roster: digest, documents: [place], statements: [place],
                document: bytes, statement: bytes}
    reply      {documents: [bytes], statements: [bytes]}

A place is the position of a participant in the roster. `document` and `statement` are the sender's
own, or empty. So one request shows something to the receiver, and its reply shows the same of the
receiver. A reply has what the peer knows of the request, up to a total size. The claims and
statements prove themselves, so this module only limits their number and size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, is_digest
from p2ptrain.proofs.claims import CLAIM_BYTES_MAX
from p2ptrain.proofs.stated_sketch import STATEMENT_BYTES_MAX

PLACES_MAX = 1024
"""Maximum number of participants, as in a roster."""

ASKED_MAX = 64
"""Maximum number of participants in each list of a request."""

REQUEST_BYTES_MAX = 1024 + CLAIM_BYTES_MAX + STATEMENT_BYTES_MAX
"""Maximum size of a request, 35 KiB: the sender's own claim and statement, three bytes for each
place, and about 150 for everything else."""

CONTENT_BYTES_MAX = STATEMENT_BYTES_MAX + 16 * CLAIM_BYTES_MAX
REPLY_BYTES_MAX = CONTENT_BYTES_MAX + 1024
"""Maximum size of a reply, 50 KiB: a statement of 16 parts and some claims. Members can still pass
it on. A peer asks again for the rest."""

ITEM_BYTES = 5
"""Maximum size of what the encoding adds to an item."""


@dataclass(frozen=True, slots=True)
class SketchRequest:
    """Raises RemoteProtocolError: a field has an invalid value."""

    roster: Digest
    documents: tuple[int, ...]
    statements: tuple[int, ...]
    document: bytes = b""
    statement: bytes = b""

    def __post_init__(self) -> None:
        sizes = len(self.document), len(self.statement)
        if sizes[0] > CLAIM_BYTES_MAX or sizes[1] > STATEMENT_BYTES_MAX:
            raise RemoteProtocolError("a request for sketches shows something that is too long")
        for places in (self.documents, self.statements):
            whole = all(type(each) is int and 0 <= each < PLACES_MAX for each in places)
            if not whole or len(places) > ASKED_MAX:
                raise RemoteProtocolError("a request for sketches names impossible participants")
        if not is_digest(self.roster):
            raise RemoteProtocolError("a request for sketches names an invalid roster")

    def encode(self) -> bytes:
        return pack(
            {
                "roster": self.roster,
                "documents": list(self.documents),
                "statements": list(self.statements),
                "document": self.document,
                "statement": self.statement,
            }
        )

    @property
    def asks(self) -> bool:
        return bool(self.documents or self.statements)

    @property
    def shows(self) -> bool:
        return bool(self.document or self.statement)


def decode_request(data: bytes) -> SketchRequest:
    """Raises RemoteProtocolError."""
    value = unpack(data, bytes_max=REQUEST_BYTES_MAX)
    kinds = {"document": bytes, "statement": bytes}
    told = fields(value, roster=str, documents=list, statements=list, **kinds)
    document, statement = told["document"], told["statement"]
    assert isinstance(document, bytes)
    assert isinstance(statement, bytes)
    places = _items(told["documents"]), _items(told["statements"])
    return SketchRequest(Digest(str(told["roster"])), *places, document, statement)


@dataclass(frozen=True, slots=True)
class SketchReply:
    """Raises RemoteProtocolError: an item has an impossible type or size."""

    documents: tuple[bytes, ...] = ()
    statements: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        limits = ((self.documents, CLAIM_BYTES_MAX), (self.statements, STATEMENT_BYTES_MAX))
        for items, bytes_max in limits:
            if not all(type(each) is bytes and len(each) <= bytes_max for each in items):
                raise RemoteProtocolError("a reply about sketches is malformed")

    def encode(self) -> bytes:
        return pack({"documents": list(self.documents), "statements": list(self.statements)})


def reply_of(documents: Iterable[bytes], statements: Iterable[bytes]) -> SketchReply:
    """Return a reply with as many of the items as fit, documents first."""
    room, kept = CONTENT_BYTES_MAX, (list[bytes](), list[bytes]())
    for items, into in zip((documents, statements), kept, strict=True):
        for each in items:
            room -= len(each) + ITEM_BYTES
            if room < 0:
                break
            into.append(each)
    return SketchReply(tuple(kept[0]), tuple(kept[1]))


def decode_reply(data: bytes) -> SketchReply:
    """Raises RemoteProtocolError."""
    value = unpack(data, bytes_max=REPLY_BYTES_MAX)
    told = fields(value, documents=list, statements=list)
    return SketchReply(_items(told["documents"]), _items(told["statements"]))


def _items(value: object) -> tuple[Any, ...]:
    """Return the items of a list. The dataclasses check their types."""
    assert isinstance(value, list)
    return tuple(value)

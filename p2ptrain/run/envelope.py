"""A signed document: its kind, its bytes, its signer, and a valid signature.

Several peers can sign the same bytes. A document with one signature has the same encoding as in
earlier versions; further signatures are a list in an additional field.

A `Signed` value can exist only with a valid signature, so callers cannot forget to check it. The
kind is part of the signed message, so an allowlist cannot be passed off as a manifest. This module
does not know what the bytes mean, or whether the signer was entitled to sign them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from blake3 import blake3

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, is_peer_id, verify
from p2ptrain.ids import Digest, PeerId
from p2ptrain.run.co_organisers import CO_ORGANISERS_MAX

PAYLOAD_BYTES_MAX = 512 * 1024
"""Maximum length of a payload: about twice the longest allowlist, which is the longest document."""

ENVELOPE_BYTES_MAX = 1024
"""Maximum bytes in addition to the payload. Kind, peer id, signature and field names take about
200."""

SIGNED_BYTES_MAX = PAYLOAD_BYTES_MAX + ENVELOPE_BYTES_MAX
_DOMAIN = "p2ptrain signed document 1"
_KIND = re.compile(r"[a-z][a-z-]{0,31}")
_TYPES = {"kind": str, "payload": bytes, "signer": str, "signature": bytes}

COSIGNATURES_MAX = CO_ORGANISERS_MAX
COSIGNATURES_BYTES_MAX = 128 * COSIGNATURES_MAX
"""Maximum bytes of the further signatures. Each takes a peer id, 64 bytes, and the encoding."""

CoSignature = tuple[PeerId, bytes]


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed document. The constructor raises RemoteProtocolError, code SIGNATURE, if a
    signature is wrong. `more` are the signatures of further signers, sorted by signer."""

    kind: str
    payload: bytes
    signer: PeerId
    signature: bytes = field(repr=False)
    more: tuple[CoSignature, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise RemoteProtocolError(f"{self.kind[:40]!r} is not a valid kind of document")
        if len(self.payload) > PAYLOAD_BYTES_MAX:
            raise RemoteProtocolError(f"a {self.kind} of {len(self.payload)} bytes is too long")
        if len(self.more) > COSIGNATURES_MAX or len(set(self.signers)) <= len(self.more):
            raise RemoteProtocolError(f"the signatures of this {self.kind} are not valid")
        for signer, signature in ((self.signer, self.signature), *self.more):
            if not verify(signer, _message(self.kind, self.payload), signature):
                raise RemoteProtocolError(
                    f"the signature of this {self.kind} is wrong: the document was altered, or "
                    f"{signer} did not sign it",
                    code="SIGNATURE",
                )

    @property
    def signers(self) -> tuple[PeerId, ...]:
        """All peers that signed. They are distinct."""
        return (self.signer, *(signer for signer, _ in self.more))

    @property
    def digest(self) -> Digest:
        """The digest of the payload: it does not depend on who has signed."""
        return Digest(blake3(self.payload).hexdigest())

    @classmethod
    def by(cls, identity: Identity, kind: str, payload: bytes) -> Signed:
        """Sign `payload` with `identity`."""
        signature = identity.sign(_message(kind, payload))
        return cls(kind, payload, identity.peer, signature)

    def also_by(self, identity: Identity) -> Signed:
        """Return the document with the signature of `identity` added; unchanged if it has it."""
        if identity.peer in self.signers:
            return self
        mine = identity.peer, identity.sign(_message(self.kind, self.payload))
        all_signatures = sorted([(self.signer, self.signature), *self.more, mine])
        (signer, signature), *more = all_signatures
        return Signed(self.kind, self.payload, signer, signature, tuple(more))

    def to_bytes(self) -> bytes:
        value = {name: getattr(self, name) for name in _TYPES}
        return pack({**value, "more": [*map(list, self.more)]} if self.more else value)

    @classmethod
    def from_bytes(
        cls,
        data: bytes | memoryview,
        *,
        kind: str,
        bytes_max: int = SIGNED_BYTES_MAX,
        signatures_max: int = 1,
    ) -> Signed:
        """Return the document of this kind in `data`, which may come from any peer. It has at most
        `signatures_max` signatures.

        Raises:
            RemoteProtocolError: it is too long, malformed, of another kind, or not signed by the
                signer that it names.
        """
        if len(data) > bytes_max:
            raise RemoteProtocolError(
                f"this {kind} is too long: it has {len(data)} bytes, more than the limit of "
                f"{bytes_max}"
            )
        value = unpack(data, bytes_max=bytes_max)
        more: tuple[CoSignature, ...] = ()
        if isinstance(value, dict) and "more" in value:
            more = _more(value.pop("more"), kind, signatures_max - 1)
        value = fields(value, **_TYPES)
        found, signer = str(value["kind"]), str(value["signer"])
        payload, signature = value["payload"], value["signature"]
        assert isinstance(payload, bytes)
        assert isinstance(signature, bytes)
        if found != kind:
            raise RemoteProtocolError(f"expected a document of kind {kind}, not {found[:40]!r}")
        if not is_peer_id(signer):
            raise RemoteProtocolError(f"the signer of this {kind} is not a peer id")
        return cls(kind, payload, PeerId(signer), signature, more)


def _more(value: object, kind: str, most: int) -> tuple[CoSignature, ...]:
    """Return the further signatures in `value`, which is not empty."""
    if isinstance(value, list) and 0 < len(value) <= most:
        found = [each for each in value if _is_signature(each)]
        if len(found) == len(value):
            return tuple((PeerId(signer), signature) for signer, signature in found)
    raise RemoteProtocolError(f"the further signatures of this {kind} are not valid")


def _is_signature(value: object) -> bool:
    match value:
        case [str(signer), bytes()]:
            return is_peer_id(signer)
    return False


def _message(kind: str, payload: bytes) -> bytes:
    return pack({"domain": _DOMAIN, "kind": kind, "payload": payload})


def documents_in(data: bytes, what: str, most: int, bytes_max: int) -> list[bytes]:
    """Return the encoded documents in a list. Raises RemoteProtocolError: it is not a list of at
    most `most` documents."""
    items = unpack(data, bytes_max=bytes_max)
    if not isinstance(items, list) or not all(isinstance(item, bytes) for item in items):
        raise RemoteProtocolError(f"{what} must be a list of signed documents")
    if len(items) > most:
        raise RemoteProtocolError(f"{len(items)} {what} exceed the limit of {most}")
    return items

"""A signed document: its kind, its bytes, its signer, and a valid signature.

A `Signed` value can exist only with a valid signature, so callers cannot forget to check it. The
kind is part of the signed message, so an allowlist cannot be passed off as a manifest. This module
does not know what the bytes mean, or whether the signer was entitled to sign them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, is_peer_id, verify
from p2ptrain.ids import PeerId

PAYLOAD_BYTES_MAX = 512 * 1024
"""Maximum length of a payload: about twice the longest allowlist, which is the longest document."""

ENVELOPE_BYTES_MAX = 1024
"""Maximum bytes in addition to the payload. Kind, peer id, signature and field names take about
200."""

SIGNED_BYTES_MAX = PAYLOAD_BYTES_MAX + ENVELOPE_BYTES_MAX
_DOMAIN = "p2ptrain signed document 1"
_KIND = re.compile(r"[a-z][a-z-]{0,31}")
_TYPES = {"kind": str, "payload": bytes, "signer": str, "signature": bytes}


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed document. The constructor raises RemoteProtocolError, code SIGNATURE, if the
    signature is wrong."""

    kind: str
    payload: bytes
    signer: PeerId
    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise RemoteProtocolError(f"{self.kind[:40]!r} is not a valid kind of document")
        if len(self.payload) > PAYLOAD_BYTES_MAX:
            raise RemoteProtocolError(f"a {self.kind} of {len(self.payload)} bytes is too long")
        if not verify(self.signer, _message(self.kind, self.payload), self.signature):
            raise RemoteProtocolError(
                f"the signature of this {self.kind} is wrong: the document was altered, or "
                f"{self.signer} did not sign it",
                code="SIGNATURE",
            )

    @classmethod
    def by(cls, identity: Identity, kind: str, payload: bytes) -> Signed:
        """Sign `payload` with `identity`."""
        signature = identity.sign(_message(kind, payload))
        return cls(kind, payload, identity.peer, signature)

    def to_bytes(self) -> bytes:
        return pack({name: getattr(self, name) for name in _TYPES})

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, *, kind: str, bytes_max: int = SIGNED_BYTES_MAX
    ) -> Signed:
        """Return the document of this kind in `data`, which may come from any peer.

        Raises:
            RemoteProtocolError: it is too long, malformed, of another kind, or not signed by the
                signer that it names.
        """
        if len(data) > bytes_max:
            raise RemoteProtocolError(
                f"this {kind} is too long: it has {len(data)} bytes, more than the limit of "
                f"{bytes_max}"
            )
        value = fields(unpack(data, bytes_max=bytes_max), **_TYPES)
        found, signer = str(value["kind"]), str(value["signer"])
        payload, signature = value["payload"], value["signature"]
        assert isinstance(payload, bytes)
        assert isinstance(signature, bytes)
        if found != kind:
            raise RemoteProtocolError(f"expected a document of kind {kind}, not {found[:40]!r}")
        if not is_peer_id(signer):
            raise RemoteProtocolError(f"the signer of this {kind} is not a peer id")
        return cls(kind, payload, PeerId(signer), signature)


def _message(kind: str, payload: bytes) -> bytes:
    return pack({"domain": _DOMAIN, "kind": kind, "payload": payload})

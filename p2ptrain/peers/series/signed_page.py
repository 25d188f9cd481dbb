"""The envelope of a page of history: its bytes, signed by the member that tells them."""

from __future__ import annotations

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import PeerId


def signed_page(prefix: bytes, body: bytes, teller: Identity) -> bytes:
    """Return `body` with a signature of `teller`. `prefix` names the kind of page, so that no page
    passes for one of another kind."""
    return pack({"body": body, "signature": teller.sign(prefix + body)})


def body_of_page(data: bytes, prefix: bytes, teller: PeerId, bytes_max: int) -> object:
    """Return the decoded body of a page that `teller` has signed.

    Raises RemoteProtocolError: the page is malformed or too long, or the signature is wrong."""
    wire = fields(unpack(data, bytes_max=bytes_max), body=bytes, signature=bytes)
    body, signature = wire["body"], wire["signature"]
    assert isinstance(body, bytes)
    assert isinstance(signature, bytes)
    if not verify(teller, prefix + body, signature):
        raise RemoteProtocolError("a page of history is not signed by the peer that sent it")
    return unpack(body, bytes_max=bytes_max)

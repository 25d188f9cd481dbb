"""The common parts of all pages of history: the signature of the member that tells them, the run,
the ids of the peers in them, and lists of rows. A row names a peer by its place among these ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, is_peer_id, verify
from p2ptrain.ids import PeerId, RunId


@dataclass(frozen=True, slots=True)
class PageKind:
    """One kind of page. `what` names it in errors. `prefix` is signed too, so that no page passes
    for one of another kind. `lengths_max` has the maximum length of each list in its body; one of
    these lists is `names`."""

    what: str
    prefix: bytes
    bytes_max: int
    lengths_max: Mapping[str, int]

    def signed(self, body: bytes, teller: Identity) -> bytes:
        """Return a page with this body and the signature of `teller`."""
        return pack({"body": body, "signature": teller.sign(self.prefix + body)})

    def lists_in(self, data: bytes, run: RunId, teller: PeerId) -> dict[str, list[Any]]:
        """Return the lists in a page that `teller` has signed. The values in `names` are peer ids;
        the others are not checked.

        Raises RemoteProtocolError: the page is malformed or too long, the signature is wrong, or
            the page belongs to another run."""
        types = {"run": str, **dict.fromkeys(self.lengths_max, list)}
        said: dict[str, Any] = {**fields(self._body_of(data, teller), **types)}
        if said.pop("run") != run:
            raise RemoteProtocolError(f"a {self.what} belongs to another run")
        too_many = any(len(said[name]) > most for name, most in self.lengths_max.items())
        if too_many or not all(map(is_peer_id, said["names"])):
            raise RemoteProtocolError(f"a {self.what} has too many rows, or an invalid peer id")
        return said

    def _body_of(self, data: bytes, teller: PeerId) -> object:
        wire = fields(unpack(data, bytes_max=self.bytes_max), body=bytes, signature=bytes)
        body, signature = wire["body"], wire["signature"]
        assert isinstance(body, bytes)
        assert isinstance(signature, bytes)
        if not verify(teller, self.prefix + body, signature):
            raise RemoteProtocolError(f"a {self.what} is not signed by the peer that sent it")
        return unpack(body, bytes_max=self.bytes_max)

    def peer_at(self, place: object, names: Sequence[str]) -> str:
        """Return the peer at this place. Raises RemoteProtocolError: there is none."""
        if type(place) is not int or not 0 <= place < len(names):
            raise RemoteProtocolError(f"a row of a {self.what} does not name a peer of its page")
        return names[place]

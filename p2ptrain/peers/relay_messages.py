"""The request with which a member asks another one to meet it at a relay, and the reply.

The two neighbours of a reduce know from the roster that they need a connection. A member that wants
to fetch chunks has to ask. The request travels over the control plane, where a third member may
pass it on (`forwarded_messages`), which carries the sender's signature. This module knows only the
format.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.dataplane.relaying import RelayKey, key_from_wire
from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId

MEET_BYTES_MAX = 512
"""Maximum bytes of a request or a reply. A key takes about 220 bytes, a peer id 52."""
REASON_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True)
class MeetRequest:
    """ "Meet me at `relay`, for `key`." The sender is the key's dialler.

    Raises:
        RemoteProtocolError: the relay is not a valid peer id.
    """

    relay: PeerId
    key: RelayKey

    def __post_init__(self) -> None:
        if not is_peer_id(self.relay):
            raise RemoteProtocolError("a request to meet names no relay")

    def encode(self) -> bytes:
        return pack({"relay": self.relay, "key": self.key.to_wire()})


def decode_request(data: bytes) -> MeetRequest:
    """Parse a request. Raises RemoteProtocolError if it is malformed."""
    wire = fields(unpack(data, bytes_max=MEET_BYTES_MAX), relay=str, key=dict)
    return MeetRequest(PeerId(str(wire["relay"])), key_from_wire(wire["key"]))


def encode_reply(refusal: str = "") -> bytes:
    """Return the reply: we come, unless `refusal` says why not."""
    return pack({"comes": not refusal, "reason": refusal[:REASON_CHARACTERS_MAX]})


def decode_reply(data: bytes) -> str:
    """Return why the peer does not come; "" if it comes. Raises RemoteProtocolError if the reply is
    malformed."""
    wire = fields(unpack(data, bytes_max=MEET_BYTES_MAX), comes=bool, reason=str)
    reason = "".join(each if each.isprintable() else "?" for each in str(wire["reason"]))
    return "" if wire["comes"] else reason[:REASON_CHARACTERS_MAX] or "it gave no reason"

"""The first messages between two nodes: what the run is, which peers may take part, and where they
are.

    newcomer ── hello: the run it expects, a signed request to join ──► any node
    newcomer ◄── manifest, allowlist, amendments, grants, admitted or not, peers ── that node

Anybody may ask, but only an admitted peer learns other peers' addresses. The newcomer checks the
documents itself: it trusts only their signers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId
from p2ptrain.peers.heartbeat import ADDRESS_CHARACTERS_MAX, ADDRESSES_MAX
from p2ptrain.peers.protocol_names import HELLO_BYTES_MAX

REQUEST_BYTES_MAX = 4096
PEERS_TOLD_MAX = 64
"""Maximum number of peers in a reply: enough for a newcomer to find all others through them."""


@dataclass(frozen=True, slots=True)
class HelloRequest:
    """The request of a newcomer. `run` is the run that the newcomer expects, or "" if it accepts
    any run. `join` is its signed request to join, or b""."""

    run: str
    join: bytes


@dataclass(frozen=True, slots=True)
class HelloReply:
    """The answer to a newcomer. `manifest` and `allowlist` are signed documents, and
    `amendments`, `grants` and `hand_overs` are encoded lists of signed documents. The documents are
    not checked here; all except the manifest may be empty. `peers` are other peers with their
    addresses."""

    manifest: bytes
    allowlist: bytes
    amendments: bytes
    admitted: bool
    peers: Mapping[PeerId, tuple[str, ...]]
    grants: bytes = b""
    hand_overs: bytes = b""


def encode_request(request: HelloRequest) -> bytes:
    return pack(asdict(request))


def decode_request(data: bytes) -> HelloRequest:
    """Decode a request. Raises RemoteProtocolError if `encode_request` cannot have made it."""
    wire = fields(unpack(data, bytes_max=REQUEST_BYTES_MAX), run=str, join=bytes)
    request = HelloRequest(**wire)  # type: ignore[arg-type]  # `fields` has checked the types
    if len(request.run) > 64:
        raise RemoteProtocolError("a hello names an invalid run")
    return request


def encode_reply(reply: HelloReply) -> bytes:
    told = list(reply.peers.items())[:PEERS_TOLD_MAX]
    later = {"grants": reply.grants, "hand_overs": reply.hand_overs}
    return pack(
        {
            **{name: data for name, data in later.items() if data},  # As in earlier versions.
            "manifest": reply.manifest,
            "allowlist": reply.allowlist,
            "amendments": reply.amendments,
            "admitted": reply.admitted,
            "peers": {peer: list(addresses[:ADDRESSES_MAX]) for peer, addresses in told},
        }
    )


def decode_reply(data: bytes) -> HelloReply:
    """Decode a reply. Raises RemoteProtocolError if `encode_reply` cannot have made it."""
    value = unpack(data, bytes_max=HELLO_BYTES_MAX)
    if isinstance(value, dict):
        value = {"grants": b"", "hand_overs": b"", **value}
    documents = dict.fromkeys(
        ("manifest", "allowlist", "amendments", "grants", "hand_overs"), bytes
    )
    wire: dict[str, Any] = {**fields(value, **documents, admitted=bool, peers=dict)}
    if len(wire["peers"]) > PEERS_TOLD_MAX:
        raise RemoteProtocolError("a hello lists too many peers")
    told = {_peer(peer): _addresses(addresses) for peer, addresses in wire["peers"].items()}
    return HelloReply(**wire | {"peers": told})


def _peer(text: str) -> PeerId:
    if not is_peer_id(text):
        raise RemoteProtocolError("a hello lists an invalid peer id")
    return PeerId(text)


def _addresses(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > ADDRESSES_MAX:
        raise RemoteProtocolError("a hello lists too many addresses of a peer")
    if not all(isinstance(item, str) and len(item) <= ADDRESS_CHARACTERS_MAX for item in value):
        raise RemoteProtocolError("a hello lists an invalid address")
    return tuple(value)

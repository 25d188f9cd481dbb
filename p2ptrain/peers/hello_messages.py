"""The first messages between two nodes: which run it is, who may take part, and which peers exist.

    newcomer ── hello: the run it expects, a signed request to join ──► any node
    newcomer ◄── manifest, allowlist, amendments, admitted or not, peers, addresses ── that node

Anybody may ask, but only an admitted peer learns other peers' addresses. The newcomer checks the
manifest and the allowlist itself: it only trusts the organiser that signed them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    """The request of a newcomer. `run` is empty if it accepts any run. `join` may be empty too."""

    run: str
    join: bytes


@dataclass(frozen=True, slots=True)
class HelloReply:
    """The answer to a newcomer. `manifest` and `allowlist` are signed documents, and `amendments`
    is a list of signed ones. They are not checked here; all except the manifest may be empty."""

    manifest: bytes
    allowlist: bytes
    amendments: bytes
    admitted: bool
    peers: Mapping[PeerId, tuple[str, ...]]


def encode_request(request: HelloRequest) -> bytes:
    return pack({"run": request.run, "join": request.join})


def decode_request(data: bytes) -> HelloRequest:
    """Decode a request. Raises RemoteProtocolError if `encode_request` cannot have made it."""
    wire = fields(unpack(data, bytes_max=REQUEST_BYTES_MAX), run=str, join=bytes)
    run, join = wire["run"], wire["join"]
    assert isinstance(run, str)
    assert isinstance(join, bytes)
    if len(run) > 64:
        raise RemoteProtocolError("a hello names an invalid run")
    return HelloRequest(run, join)


def encode_reply(reply: HelloReply) -> bytes:
    told = list(reply.peers.items())[:PEERS_TOLD_MAX]
    return pack(
        {
            "manifest": reply.manifest,
            "allowlist": reply.allowlist,
            "amendments": reply.amendments,
            "admitted": reply.admitted,
            "peers": {peer: list(addresses[:ADDRESSES_MAX]) for peer, addresses in told},
        }
    )


def decode_reply(data: bytes) -> HelloReply:
    """Decode a reply. Raises RemoteProtocolError if `encode_reply` cannot have made it."""
    wire = fields(
        unpack(data, bytes_max=HELLO_BYTES_MAX),
        manifest=bytes,
        allowlist=bytes,
        amendments=bytes,
        admitted=bool,
        peers=dict,
    )
    manifest, allowlist, peers = wire["manifest"], wire["allowlist"], wire["peers"]
    assert isinstance(manifest, bytes)
    amendments = wire["amendments"]
    assert isinstance(allowlist, bytes)
    assert isinstance(amendments, bytes)
    assert isinstance(peers, dict)
    if len(peers) > PEERS_TOLD_MAX:
        raise RemoteProtocolError("a hello lists too many peers")
    told = {_peer(peer): _addresses(addresses) for peer, addresses in peers.items()}
    return HelloReply(manifest, allowlist, amendments, wire["admitted"] is True, told)


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

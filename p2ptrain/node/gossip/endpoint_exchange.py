"""Two peers tell each other where their data planes are, without waiting for a heartbeat.

Certificates are made afresh at each start, and heartbeats carry them. Until both sides have heard
the other's, which after a start takes up to a heartbeat of two seconds, neither lets the other in;
a ring that waits for two neighbours keeps all of its members waiting. So who is refused, or does
not know where to dial, asks that peer itself, and says the same of itself. The control plane has
proven who speaks; the endpoint is believed no further than one in a heartbeat.
"""

from __future__ import annotations

from p2ptrain.dataplane import Endpoint
from p2ptrain.encoding import pack
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Parts
from p2ptrain.peers.peer_table import endpoint_of
from p2ptrain.peers.protocol_names import ENDPOINT_BYTES_MAX, ENDPOINT_PROTOCOL

INTRODUCE_S = 2.0
"""Then a heartbeat would have told it as well."""


def answer_introductions(parts: Parts) -> None:
    """From now on let in the data planes of admitted peers that introduce themselves."""

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        _let_in(parts, peer, payload)
        return pack(parts.endpoint.to_wire())

    parts.network.handle(ENDPOINT_PROTOCOL, answer, bytes_max=ENDPOINT_BYTES_MAX)


async def introduced(parts: Parts, peer: PeerId) -> Endpoint | None:
    """Where the data plane of `peer` is by its own word, which now lets us in; None if it does not
    answer, or not properly.
    """
    ours = pack(parts.endpoint.to_wire())
    try:
        reply = await parts.network.request(
            peer,
            ENDPOINT_PROTOCOL,
            ours,
            deadline_s=INTRODUCE_S,
            bytes_max=ENDPOINT_BYTES_MAX,
        )
        return _let_in(parts, peer, reply)
    except (PeerError, RemoteProtocolError) as exc:
        parts.complain("not-introduced", peer, reason=exc.what)
        return None


def _let_in(parts: Parts, peer: PeerId, wire: bytes) -> Endpoint | None:
    """Trust the certificate of `peer`; None if it has no data plane.

    Raises:
        RemoteProtocolError: malformed, or the endpoint of somebody else.
    """
    endpoint = endpoint_of(peer, wire)
    if endpoint is not None:
        parts.listener.trust(endpoint.certificate_der)
    return endpoint

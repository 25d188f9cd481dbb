"""Exchange data-plane endpoints between two peers, without waiting for a heartbeat.

Certificates are new at each start, and heartbeats carry them. After a start it takes up to one
heartbeat, two seconds, until both sides have the other's certificate. Until then neither admits the
other, and a ring that waits for two neighbours keeps all of its members waiting. So a node that is
refused, or does not know where to dial, sends its endpoint to that peer and asks for the peer's.
The control plane has authenticated the peer; the endpoint is trusted no further than one in a
heartbeat.
"""

from __future__ import annotations

from p2ptrain.dataplane import Endpoint
from p2ptrain.encoding import pack
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.peers.peer_table import endpoint_of
from p2ptrain.peers.protocol_names import ENDPOINT_BYTES_MAX, ENDPOINT_PROTOCOL

INTRODUCE_S = 2.0
"""The request's deadline: after that time a heartbeat would have carried the endpoint too."""


def answer_introductions(context: Context) -> None:
    """Admit the data planes of admitted peers that introduce themselves, from now on."""

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        _let_in(context, peer, payload)
        return pack(context.plane.endpoint.to_wire())

    context.network.handle(ENDPOINT_PROTOCOL, answer, bytes_max=ENDPOINT_BYTES_MAX)


async def introduced(context: Context, peer: PeerId) -> Endpoint | None:
    """Ask `peer` for its data-plane endpoint; by answering it also admits us. Return None if it
    does not answer or the answer is malformed.
    """
    ours = pack(context.plane.endpoint.to_wire())
    try:
        reply = await context.network.request(
            peer,
            ENDPOINT_PROTOCOL,
            ours,
            deadline_s=INTRODUCE_S,
            bytes_max=ENDPOINT_BYTES_MAX,
        )
        return _let_in(context, peer, reply)
    except (PeerError, RemoteProtocolError) as exc:
        context.peers.report_misbehaviour("not-introduced", peer, reason=exc.what)
        return None


def _let_in(context: Context, peer: PeerId, wire: bytes) -> Endpoint | None:
    """Trust the certificate of `peer`. Return its endpoint; None if it has no data plane.

    Raises:
        RemoteProtocolError: malformed, or another peer's endpoint.
    """
    endpoint = endpoint_of(peer, wire)
    if endpoint is not None:
        context.plane.listener.trust_certificate(endpoint.certificate_der)
    return endpoint

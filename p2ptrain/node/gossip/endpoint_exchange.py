"""Exchange data-plane endpoints (address and certificate) with a peer at once.

A node makes a new certificate at each start, and sends it in heartbeats. After a start, it takes up
to one heartbeat interval, two seconds, until two peers have each other's certificate. Until then,
neither accepts data-plane connections of the other, and all members of a ring wait if two
neighbours cannot connect. So a node that is refused, or that does not know where to dial, sends its
own endpoint to that peer and asks for the peer's endpoint. The control plane has authenticated the
peer, or the peer has signed the message (`forwarding`), so the endpoint is trusted as much as one
in a heartbeat.
"""

from __future__ import annotations

from p2ptrain.dataplane import Endpoint
from p2ptrain.encoding import pack
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.gossip.own_endpoint import own_endpoint
from p2ptrain.node.state.context import Context
from p2ptrain.peers.peer_table import endpoint_of
from p2ptrain.peers.protocol_names import ENDPOINT_BYTES_MAX, ENDPOINT_PROTOCOL

INTRODUCE_S = 2.0
"""Deadline of the request in seconds. By then, a heartbeat has brought the endpoint anyway."""


def answer_introductions(context: Context) -> None:
    """From now on, accept data-plane connections from each admitted peer that sends its endpoint,
    and answer with our own endpoint."""

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        _let_in(context, peer, payload)
        return pack(own_endpoint(context).to_wire())

    forwarding.handle(context, ENDPOINT_PROTOCOL, answer, bytes_max=ENDPOINT_BYTES_MAX)


async def introduced(
    context: Context, peer: PeerId, *, may_connect: bool = True
) -> Endpoint | None:
    """Send `peer` our data-plane endpoint, and return the endpoint that it answers with. A peer
    that answers also accepts our data-plane connections. `may_connect` is as for
    `forwarding.request`. Return None if it does not answer, or if
    the answer is malformed."""
    ours = pack(own_endpoint(context).to_wire())
    try:
        reply = await forwarding.request(
            context,
            peer,
            ENDPOINT_PROTOCOL,
            ours,
            deadline_s=INTRODUCE_S,
            bytes_max=ENDPOINT_BYTES_MAX,
            may_connect=may_connect,
        )
        return _let_in(context, peer, reply)
    except (PeerError, RemoteProtocolError) as exc:
        context.peers.report_misbehaviour("not-introduced", peer, reason=exc.what)
        return None


def _let_in(context: Context, peer: PeerId, wire: bytes) -> Endpoint | None:
    """Accept connections with the certificate in `wire`, the endpoint of `peer`. Return the
    endpoint, with further addresses from a heartbeat of the same start of `peer`; None if the peer
    does not have a data plane.

    Raises RemoteProtocolError: the endpoint is malformed, or belongs to a different peer."""
    endpoint = endpoint_of(peer, wire)
    if endpoint is not None:
        context.plane.listener.trust_certificate(endpoint.certificate_der)
        return context.peers.table.with_candidates(endpoint)
    return None

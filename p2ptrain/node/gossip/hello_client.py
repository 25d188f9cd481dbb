"""Ask a peer for the run's manifest, allowlist and amendments with one request, a *hello*."""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.peers.hello_messages import HelloReply, HelloRequest, decode_reply, encode_request
from p2ptrain.peers.protocol_names import HELLO_BYTES_MAX, HELLO_PROTOCOL

HELLO_S = 10.0
"""Deadline in seconds: enough for a manifest and an allowlist of thousands of peers over any
connection that is fast enough to train."""


async def send_hello(network: Network, peer: PeerId, request: HelloRequest) -> HelloReply:
    """Send one hello and return the reply.

    Raises PeerError, RemoteProtocolError: `peer` does not answer, or its reply is malformed."""
    answer = await network.request(
        peer, HELLO_PROTOCOL, encode_request(request), deadline_s=HELLO_S, bytes_max=HELLO_BYTES_MAX
    )
    return decode_reply(answer)

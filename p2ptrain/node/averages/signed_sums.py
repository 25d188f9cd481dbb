"""Show the signed sums that this node keeps, and ask other participants for theirs.

*Whose word is it?* Each statement carries its peer's signature, so nothing else has to be believed.
A peer that shows nothing can only harm itself: see `p2ptrain.proofs.sum_tracing`.
"""

from __future__ import annotations

import trio

from p2ptrain.errors import P2PTrainError, RemoteProtocolError, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import SUMS_PROTOCOL
from p2ptrain.proofs.signed_sums import (
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SumsRequest,
    decode_request,
    decode_runs,
    encode_runs,
)
from p2ptrain.rate_limit import Allowance
from p2ptrain.ring import SignedRun

PEER_BURST, PEER_PER_S = 64, 1.0
"""Rate limit for requests of one peer. A member asks only after it has found a wrong average."""

ASK_S = 8.0
"""Deadline in seconds for a question. The longest answer has 1 MiB."""

TRIES = 3
AGAIN_S = 1.0
"""Number of times that a peer is asked before it counts as withholding, and the seconds between two
tries. A peer may be busy for a moment, or be starting again."""


def serve_sums(context: Context) -> None:
    """From now on, show admitted peers what was signed to this node in the newest reduces."""
    allowed = Allowance(PEER_BURST, PEER_PER_S)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        asked = decode_request(payload)
        if not allowed.consume(peer, 1, context.now()):
            raise TryLater("too many requests for signed sums: try again in a minute")
        return encode_runs(own_sums(context, asked))

    forwarding.handle(context, SUMS_PROTOCOL, answer, bytes_max=REQUEST_BYTES_MAX)


def own_sums(context: Context, asked: SumsRequest) -> tuple[SignedRun, ...]:
    kept = context.reduce.sums
    return () if kept is None else kept.shown(asked.roster, asked.start, asked.stop)


async def sums_of(
    context: Context, peer: PeerId, asked: SumsRequest, *, tries: int = TRIES
) -> tuple[SignedRun, ...]:
    """Return what `peer` shows; () if it does not answer."""
    if peer == context.me:
        return own_sums(context, asked)
    for number in range(tries):
        if number:
            await trio.sleep(AGAIN_S)
        try:
            reply = await forwarding.request(
                context,
                peer,
                SUMS_PROTOCOL,
                asked.encode(),
                deadline_s=ASK_S,
                bytes_max=REPLY_BYTES_MAX,
            )
            if shown := decode_runs(reply):
                return shown
        except RemoteProtocolError:
            return ()
        except P2PTrainError:
            continue
    return ()

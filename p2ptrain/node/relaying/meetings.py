"""Ask a member to meet this node at a relay, and come when a member asks.

*Whose word is it?* The request must come from a member, or from a visitor that fetches chunks, for
itself, directly or with its signature. All visitors together have a limit of their own. The peer
chooses only the relay, among the members that this node knows to offer relaying. A member may
choose itself: then this node dials it, so that it can fetch from a node that it cannot dial. The
peer cannot make this node connect to any other address. It can make this node open a few
connections to these relays. An edge of a reduce must fit this node's own ledger.
"""

from __future__ import annotations

from contextlib import suppress

import trio

from p2ptrain.dataplane.relaying import FetchKey, Refused, RelayRequest, Route, judge
from p2ptrain.errors import NotAuthorised, PeerError, PeerUnreachable, ProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.relaying.own_relay import own_view
from p2ptrain.node.relaying.relayed_links import relay_offers, serve_relayed
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import RELAY_PROTOCOL
from p2ptrain.peers.relay_messages import (
    MEET_BYTES_MAX,
    MeetRequest,
    decode_reply,
    decode_request,
    encode_reply,
)
from p2ptrain.rate_limit import Allowance, FairAllowance

ASKS_AT_ONCE, ASKS_PER_S = 16, 2.0
"""Requests of one member to meet it at a relay."""

VISITORS_AT_ONCE, VISITORS_PER_S = 16, 1.0
"""Requests of all visitors together. A visitor makes one for each source and relay."""

SERVING_MAX = 32
"""Maximum number of requests that are served at the same time. Each one uses a thread."""

SERVE_S = 6.0
"""Seconds in which the connection through the relay must be made."""

ASK_S = 4.0


async def answer_meetings(context: Context) -> None:
    """Come to relays when members ask, until cancelled."""
    asked = Allowance(ASKS_AT_ONCE, ASKS_PER_S)
    asked_by_visitors = FairAllowance(VISITORS_AT_ONCE, VISITORS_PER_S)
    limiter = trio.CapacityLimiter(SERVING_MAX)
    async with trio.open_nursery() as nursery:

        async def answer(peer: PeerId, payload: bytes) -> bytes:
            wanted = decode_request(payload)
            if refusal := _refusal(context, peer, wanted):
                raise NotAuthorised(refusal, peer=peer)
            limit = asked_by_visitors if context.peers.is_visitor(peer) else asked
            if not limit.consume(peer, 1, context.now()):
                return encode_reply("you ask too often")
            offers, there = relay_offers(context), context.peers.table.endpoint(peer)
            if wanted.relay not in offers or there is None:
                return encode_reply("this node does not know the relay, or your certificate")
            if limiter.available_tokens < 1:
                return encode_reply("this node serves too many others")
            nursery.start_soon(come, Route(offers[wanted.relay], there, wanted.key))
            return encode_reply()

        async def come(route: Route) -> None:
            try:
                await serve_relayed(context, [route], deadline_s=SERVE_S, limiter=limiter)
            except (PeerError, ProtocolError, NotAuthorised) as exc:
                context.journal.write(
                    "relay-failed", relay=route.relay.peer, peer=route.peer.peer, reason=exc.what
                )
            else:
                if route.relay.peer == route.peer.peer:
                    return  # This node has dialled the peer itself.
                context.peers.relaying.note_reached(route.peer.peer, context.now())

        forwarding.handle(context, RELAY_PROTOCOL, answer, bytes_max=MEET_BYTES_MAX)
        await trio.sleep_forever()


async def ask_to_meet(context: Context, route: Route) -> None:
    """Ask the peer of `route` to meet this node at the relay, for the route's key. Raises
    PeerUnreachable if it does not come, and what `forwarding.request` raises."""
    wanted = MeetRequest(route.relay.peer, route.key)
    reply = await forwarding.request(
        context,
        route.peer.peer,
        RELAY_PROTOCOL,
        wanted.encode(),
        deadline_s=ASK_S,
        bytes_max=MEET_BYTES_MAX,
        may_connect=False,  # A dial of its data plane has just failed.
    )
    if refusal := decode_reply(reply):
        raise PeerUnreachable(f"it does not come to the relay: {refusal}", peer=route.peer.peer)


def new_fetch_key(context: Context) -> FetchKey:
    """Return the key of a new connection over which this node fetches chunks."""
    return FetchKey(context.run, context.draw.randbytes(16), context.me)


def _refusal(context: Context, peer: PeerId, wanted: MeetRequest) -> str:
    """Return why this node must not come; "" if it may."""
    if wanted.key.dialler != peer:
        return "a request to meet must come from the end that dials"
    if wanted.relay == context.me:
        return "a relay must be another member"
    with suppress(ProtocolError):
        verdict = judge(RelayRequest(context.me, peer, wanted.key), own_view(context))
        return verdict.reason if isinstance(verdict, Refused) else ""
    return "a request to meet is malformed"

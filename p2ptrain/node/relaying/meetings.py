"""Ask a member to meet this node at a relay, and come when a member asks.

*Whose word is it?* The request must come from a member, or from a visitor that fetches chunks, for
itself, directly or with its signature. All visitors together have a limit of their own. The peer
chooses only the relay, among the members that this node knows to offer relaying. An edge of a
reduce must fit this node's own ledger.

Instead of a relay, the peer may name itself. This is a *reverse dial*: this node dials the peer, if
it sees the peer at an address that the peer announces (`_place_of_caller`). The peer cannot make
this node connect to any other address.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import trio

from p2ptrain.dataplane import Endpoint, ExternalAddress
from p2ptrain.dataplane.candidates import refusal
from p2ptrain.dataplane.relaying import FetchKey, Refused, RelayRequest, Route, judge
from p2ptrain.errors import (
    NotAuthorised,
    PeerError,
    PeerUnreachable,
    ProtocolError,
    RemoteProtocolError,
)
from p2ptrain.ids import PeerId
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.forwarding.sightings import own_gateways, sightings_of
from p2ptrain.node.relaying.own_relay import own_view
from p2ptrain.node.relaying.relayed_links import relay_offers, serve_relayed
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.forwarding import Passage
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


async def answer_meetings(
    context: Context, *, gateways: Callable[[], frozenset[str]] = own_gateways
) -> None:
    """Come to relays, or dial the peer itself, when members and visitors ask, until cancelled.
    `gateways` is as for `answer_punches`."""
    asked = Allowance(ASKS_AT_ONCE, ASKS_PER_S)
    asked_by_visitors = FairAllowance(VISITORS_AT_ONCE, VISITORS_PER_S)
    limiter = trio.CapacityLimiter(SERVING_MAX)
    async with trio.open_nursery() as nursery:

        async def direct(peer: PeerId, payload: bytes) -> bytes:
            return await answer(peer, payload, None)

        async def answer(peer: PeerId, payload: bytes, passage: Passage | None) -> bytes:
            wanted = decode_request(payload)
            if why := _refusal(context, peer, wanted):
                raise NotAuthorised(why, peer=peer)
            limit = asked_by_visitors if context.peers.is_visitor(peer) else asked
            if not limit.consume(peer, 1, context.now()):
                return encode_reply("you ask too often")
            there = context.peers.table.endpoint(peer)
            if wanted.relay == peer and isinstance(wanted.key, FetchKey):
                relay = _place_of_caller(context, peer, passage, gateways())
                unknown = "this node does not see you at an address that you announce"
            else:
                relay = relay_offers(context).get(wanted.relay)
                unknown = "this node does not know the relay, or your certificate"
            if there is None or relay is None:
                return encode_reply(unknown)
            if limiter.available_tokens < 1:
                return encode_reply("this node serves too many others")
            nursery.start_soon(come, Route(relay, there, wanted.key))
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

        forwarding.handle_both(context, RELAY_PROTOCOL, direct, answer, bytes_max=MEET_BYTES_MAX)
        await trio.sleep_forever()


async def ask_to_meet(context: Context, route: Route) -> None:
    """Ask the peer of `route` to meet this node at the relay, or to dial this node if this node is
    the relay, for the route's key. Raises PeerUnreachable if it does not come, and what
    `forwarding.request` raises."""
    wanted = MeetRequest(route.relay.peer, route.key)
    reply = await forwarding.request(
        context,
        route.peer.peer,
        RELAY_PROTOCOL,
        wanted.encode(),
        deadline_s=ASK_S,
        bytes_max=MEET_BYTES_MAX,
        may_connect=False,  # The peer cannot be dialled, or a dial is under way.
    )
    if why := decode_reply(reply):
        what = "dial this node" if route.relay.peer == context.me else "come to the relay"
        raise PeerUnreachable(f"it does not {what}: {why}", peer=route.peer.peer)


def new_fetch_key(context: Context) -> FetchKey:
    """Return the key of a new connection over which this node fetches chunks."""
    return FetchKey(context.run, context.draw.randbytes(16), context.me)


def _place_of_caller(
    context: Context, peer: PeerId, passage: Passage | None, gateways: frozenset[str]
) -> Endpoint | None:
    """Return where to dial `peer` at its own request: at the addresses that it announces, as far as
    hole punching may call them too (`dataplane/candidates`). So this node, or the member that
    passed the request on, must see the peer there. Return None if there is no such address."""
    there = context.peers.table.endpoint(peer)
    if there is None:
        return None
    sightings = sightings_of(context, peer, passage, gateways)
    places = list[tuple[str, int]]()
    for each in there.each_place():
        with suppress(RemoteProtocolError):  # A port below 1024 is not called.
            called = ExternalAddress.of(each.host, each.port)
            if not refusal([called], sightings) and context.peers.may_be_at(each):
                places.append((each.host, each.port))
    if not places:
        return None
    (host, port), *others = places
    return replace(there, host=host, port=port, others=tuple(others))


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

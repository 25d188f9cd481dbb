"""Send requests to members that this node cannot connect to, through a member that can.

Two nodes behind NATs often cannot connect to each other, but both are connected to some member. A
request that cannot be sent directly goes to such a member, the *forwarder*, which passes it on and
returns the reply. There is one hop. Only requests of a few protocols are passed on
(`forwarded_protocols`), and only those that were registered with `handle` are answered.

*Whose word is it?* The receiver believes the sender's signature and not the forwarder
(`peers/forwarded_messages`). A node passes requests on only between members of the roster, only for
the member that it is connected to, only to a member that it is connected to, and at a limited rate.
So nobody can use it to reach an address, or to multiply traffic. A lying forwarder can lose or
delay messages; the sender then asks another one.

One of the two ends may be a visitor, which the organisers or a delegate admit by name and which is
not a member, for instance because it still lacks the weights. Then only the few requests that open
a connection for chunks are passed on, with a limit of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from p2ptrain.address_group import plain_host
from p2ptrain.errors import (
    NotAuthorised,
    PeerError,
    PeerUnreachable,
    RemoteProtocolError,
    TryLater,
)
from p2ptrain.identity import verify
from p2ptrain.ids import PeerId
from p2ptrain.node.forwarding.forwarded_protocols import FORWARDED
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.forwarding import Handler, Passage, PassedOn
from p2ptrain.peers.forwarded_messages import (
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    ForwardedMessage,
    decode,
)
from p2ptrain.peers.protocol_names import FORWARD_PROTOCOL

DIRECT_S = 2.0
"""Deadline in seconds of a direct request to a peer that is not connected, if there may be a
forwarder. Connecting takes five round trips, so 2 s are enough around the world."""

DIRECT_AGAIN_S = 30.0
"""Seconds for which requests to a peer that could not be connected are forwarded at once. The peer
is dialled in the background anyway (`connections`)."""

PASS_ON_S = 3.0
"""Deadline in seconds of one try with one forwarder."""

FORWARDERS_MAX = 3
"""Maximum number of forwarders to try for one request."""


def handle(context: Context, protocol: str, handler: Handler, *, bytes_max: int) -> None:
    """From now on, answer requests of `protocol`, both direct ones and forwarded ones. See
    `Network.handle`. The protocol must be one of `FORWARDED`, which limits the size of forwarded
    requests."""

    async def passed_on(peer: PeerId, payload: bytes, passage: Passage) -> bytes:
        return await handler(peer, payload)

    handle_both(context, protocol, handler, passed_on, bytes_max=bytes_max)


def handle_both(
    context: Context, protocol: str, direct: Handler, passed_on: PassedOn, *, bytes_max: int
) -> None:
    """Like `handle`, but with another handler for forwarded requests."""
    at_most = min(bytes_max, FORWARDED[protocol].request_bytes_max)
    context.network.handle(protocol, direct, bytes_max=bytes_max)
    context.peers.forwarding.handlers[protocol] = passed_on, at_most


def answer_forwarded(context: Context) -> None:
    """From now on, pass on requests between members, and answer those that are for this node."""

    async def answer(peer: PeerId, data: bytes) -> bytes:
        message = decode(data)
        if message.run != context.run or message.is_reply:
            raise RemoteProtocolError("a forwarded message is of a different run", peer=peer)
        if message.receiver == context.me:
            return await _answer(context, peer, message)
        return await _pass_on(context, peer, message, data)

    context.network.handle(FORWARD_PROTOCOL, answer, bytes_max=MESSAGE_BYTES_MAX)


async def request(
    context: Context,
    peer: PeerId,
    protocol: str,
    payload: bytes,
    *,
    deadline_s: float,
    bytes_max: int,
    may_connect: bool = True,
) -> bytes:
    """Send a request to `peer` and return its reply. If `peer` cannot be connected, send the
    request through a forwarder. Without `may_connect`, do so at once if `peer` is not connected and
    there may be a forwarder.

    Raises:
        PeerError, RemoteProtocolError: see `Network.request`. PeerUnreachable also if no forwarder
            could pass the request on.
    """
    members = _possible_forwarders(context, peer, protocol)
    state, connected = context.peers.forwarding, peer in context.network.connected()
    due = may_connect and context.now() >= state.direct_again_s.get(peer, 0.0)
    if connected or not members or due:
        if not connected and members:
            deadline_s = min(deadline_s, DIRECT_S)
        try:
            return await context.network.request(
                peer, protocol, payload, deadline_s=deadline_s, bytes_max=bytes_max
            )
        except PeerError:
            # A connected peer that refuses, or is slow, would do the same to a forwarded request.
            if connected or not members or peer in context.network.connected():
                raise
            state.direct_again_s[peer] = context.now() + DIRECT_AGAIN_S
    return await _request_through(context, members, peer, protocol, payload, bytes_max)


async def _request_through(
    context: Context,
    members: list[PeerId],
    peer: PeerId,
    protocol: str,
    payload: bytes,
    bytes_max: int,
) -> bytes:
    message = _new_request(context, peer, protocol, payload)
    why = []
    for member in members[:FORWARDERS_MAX]:
        try:
            reply = decode(
                await context.network.request(
                    member,
                    FORWARD_PROTOCOL,
                    message.encode(),
                    deadline_s=PASS_ON_S,
                    bytes_max=MESSAGE_BYTES_MAX,
                )
            )
            if not reply.answers(message) or not reply.is_genuine(verify):
                raise RemoteProtocolError("it returned a reply that is not genuine", peer=member)
        except (PeerError, RemoteProtocolError) as exc:
            context.peers.forwarding.forwarders.pop(peer, None)
            why.append(f"{member}: {exc.what}")
            continue
        if len(reply.payload) > bytes_max:
            raise RemoteProtocolError("its forwarded reply is too long", peer=peer)
        context.peers.forwarding.forwarders[peer] = member
        return reply.payload
    raise PeerUnreachable(
        "it cannot be connected, and no member passed the message on",
        peer=peer,
        evidence=why,
    )


def _new_request(context: Context, peer: PeerId, protocol: str, payload: bytes) -> ForwardedMessage:
    """Return a signed request. Raises PeerUnreachable: the request cannot be forwarded."""
    record = context.peers.table.get(peer)
    if len(payload) > PAYLOAD_BYTES_MAX or record is None:
        why = "its heartbeat is missing" if record is None else "the message is too long"
        raise PeerUnreachable(f"it cannot be connected, and {why} for forwarding", peer=peer)
    serial = context.peers.forwarding.next_serial
    context.peers.forwarding.next_serial += 1
    ends = context.identities.incarnation, record.heartbeat.incarnation
    unsigned = ForwardedMessage(
        context.run, context.me, peer, *ends, serial, protocol, is_reply=False, payload=payload
    )
    return unsigned.signed(context.identity.sign)


def _may_exchange(context: Context, sender: PeerId, receiver: PeerId, protocol: str) -> bool:
    """Return whether requests of `protocol`, one of `FORWARDED`, are passed on between these
    two."""
    is_member = context.ledger.snapshot.is_member
    if is_member(sender) and is_member(receiver):
        return True
    fetches = context.peers.may_fetch_in_every_way
    may_fetch = fetches(sender, receiver) or fetches(receiver, sender)
    return FORWARDED[protocol].for_visitors and may_fetch


def _possible_forwarders(context: Context, peer: PeerId, protocol: str) -> list[PeerId]:
    """Return the connected members in the order in which to try them: the one that passed on the
    last message first, the others in a random order. Return none if nobody would pass the message
    on."""
    if not _may_exchange(context, context.me, peer, protocol):
        return []
    state = context.ledger.snapshot
    found = [it for it in context.network.connected() if state.is_member(it) and it != peer]
    context.draw.shuffle(found)
    last = context.peers.forwarding.forwarders.get(peer)
    return sorted(found, key=lambda it: it != last)


async def _pass_on(context: Context, peer: PeerId, message: ForwardedMessage, data: bytes) -> bytes:
    """Pass a request of `peer` on to its receiver, and return the receiver's reply."""
    if message.sender != peer:
        raise NotAuthorised("a request is passed on only for its sender", peer=peer)
    passing_on = FORWARDED.get(message.protocol)
    if passing_on is None:
        raise NotAuthorised("requests of this protocol are not passed on", peer=peer)
    if len(message.payload) > passing_on.request_bytes_max:
        raise NotAuthorised("the request is too long for its protocol", peer=peer)
    if not _may_exchange(context, peer, message.receiver, message.protocol):
        raise NotAuthorised("requests are passed on between members only", peer=peer)
    if message.receiver not in context.network.connected():
        raise TryLater("this node is not connected to the receiver either")
    if not _is_allowed(context, message):
        raise TryLater("this node passes on only a few requests per second for each sender")
    context.peers.forwarding.passed_on += 1
    if passing_on.with_address:
        # A statement of the sender about its own address must not count.
        host = context.network.host_of(message.sender)
        data = replace(message, seen_at=plain_host(host) if host else "").encode()
    return await context.network.request(
        message.receiver,
        FORWARD_PROTOCOL,
        data,
        deadline_s=PASS_ON_S,
        bytes_max=MESSAGE_BYTES_MAX,
    )


def _is_allowed(context: Context, message: ForwardedMessage) -> bool:
    """Return whether the limits allow passing on one more request. If so, count it."""
    forwarding, sender, now = context.peers.forwarding, message.sender, context.now()
    visitors = [it for it in (sender, message.receiver) if context.peers.is_visitor(it)]
    if visitors:
        return forwarding.allowed_visitors.consume(visitors[0], 1, now)
    if not FORWARDED[message.protocol].is_rare:
        return forwarding.allowed.consume(sender, 1, now)
    # Both limits count only requests that are passed on.
    rare, usual = forwarding.allowed_rare, forwarding.allowed
    return (
        rare.covers(sender, 1, now)
        and usual.consume(sender, 1, now)
        and rare.consume(sender, 1, now)
    )


async def _answer(context: Context, forwarder: PeerId, message: ForwardedMessage) -> bytes:
    """Answer a request that another member has passed on."""
    for fault in _faults(context, forwarder, message):
        raise NotAuthorised(fault, peer=message.sender)
    handler, _ = context.peers.forwarding.handlers[message.protocol]
    # A sender that poses as its own forwarder must not state its own address.
    seen_at = message.seen_at if forwarder != message.sender else ""
    passage = Passage(forwarder, seen_at)
    reply = message.reply(await handler(message.sender, message.payload, passage))
    return reply.signed(context.identity.sign).encode()


def _faults(context: Context, forwarder: PeerId, message: ForwardedMessage) -> Iterator[str]:
    """Yield why the request is not answered. The last check records the request as handled."""
    sender, forwarding = message.sender, context.peers.forwarding
    if not context.ledger.snapshot.is_member(forwarder):
        yield "the peer that passes the request on is not a member"
    if message.protocol not in forwarding.handlers:
        yield "requests of this protocol cannot be forwarded"
    elif len(message.payload) > forwarding.handlers[message.protocol][1]:
        yield "the forwarded request is too long"
    as_member = context.ledger.snapshot.is_member(sender) and context.admission.may_train(sender)
    may_ask = context.peers.may_fetch_in_every_way(sender, context.me)
    visits = message.protocol in FORWARDED and FORWARDED[message.protocol].for_visitors
    if not as_member and not (visits and may_ask):
        yield "the sender of a forwarded request is not a member"
    if message.receiver_incarnation != context.identities.incarnation:
        yield "the forwarded request is for an earlier start of this node"
    if not forwarding.accepted.consume((forwarder, sender), 1, context.now()):
        yield "too many requests of this sender are forwarded"
    if not message.is_genuine(verify):
        yield "the forwarded request does not have its sender's signature"
    if not forwarding.handled.is_new(sender, message.sender_incarnation, message.serial):
        yield "the forwarded request has been handled already"

"""Agree with another member on where and when to punch: send and answer messages, observe ports,
and keep the deadlines of `PunchSessions`.

The messages go directly or through a forwarder (`forwarding`). Only members of the roster are
heard, and visitors that want to fetch chunks from us. A visitor has one connection for each
agreement, and all visitors together have a limit of their own. `Sightings` decides which addresses
may be called; it knows only what this node and the forwarder have seen.

If another member offers, this module also punches: the listener's handlers then serve the
connections, as if the member had dialled. If this node offers, `agreed` returns the agreement, and
the caller punches.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import trio

from p2ptrain.dataplane import (
    DialHandle,
    Endpoint,
    ExternalAddress,
    LocalPort,
    Observation,
    Sightings,
    punch_and_serve,
)
from p2ptrain.dataplane.punch_messages import (
    MESSAGE_BYTES_MAX,
    NONCE_BYTES,
    PunchOffer,
    decode,
    encode,
)
from p2ptrain.dataplane.punch_sessions import Effect, Failed, Gather, Punch, Send
from p2ptrain.errors import (
    NotAuthorised,
    P2PTrainError,
    PeerError,
    PeerTooSlow,
    PeerUnreachable,
    RemoteProtocolError,
    TryLater,
)
from p2ptrain.ids import PeerId
from p2ptrain.node.connecting.single import open_connection
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.forwarding.sightings import own_gateways, sightings_of
from p2ptrain.node.gossip.endpoint_exchange import introduced
from p2ptrain.node.punching.observed_ports import close, observe_ports, take_ports
from p2ptrain.node.punching.purposes import unwanted
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.forwarding import Passage
from p2ptrain.node.state.punching import CHUNKS, Agreed
from p2ptrain.node.state.threads import in_thread
from p2ptrain.peers.protocol_names import PUNCH_PROTOCOL

SEND_S = 3.0
"""Deadline of a message in seconds, including its empty reply."""

AGREE_S = 6.0
"""Deadline of an agreement in seconds, with the observation of our ports."""

EFFECTS_MAX = 256
"""Maximum number of effects that wait to be executed. They are executed at once, so a full queue
means that this node is overloaded; an agreement whose effect is lost fails at its deadline."""

VISITORS = "visitors"
"""Stands for all visitors together in the division of our observed ports."""

FAILED_MAX = 256
"""Maximum number of failed agreements that are remembered."""

THREADS = trio.CapacityLimiter(128)
"""Threads that punch: the streams of 32 neighbours at once."""


def answer_punches(
    context: Context, *, gateways: Callable[[], frozenset[str]] = own_gateways
) -> None:
    """From now on, answer other members' messages about punching, direct and forwarded ones.
    `gateways` returns the inside addresses of this machine's routers."""

    async def direct(peer: PeerId, payload: bytes) -> bytes:
        sightings = sightings_of(context, peer, None, gateways())
        return _receive(context, peer, payload, sightings)

    async def passed_on(peer: PeerId, payload: bytes, passage: Passage) -> bytes:
        sightings = sightings_of(context, peer, passage, gateways())
        return _receive(context, peer, payload, sightings)

    forwarding.handle_both(context, PUNCH_PROTOCOL, direct, passed_on, bytes_max=MESSAGE_BYTES_MAX)


async def keep_punching(context: Context) -> None:
    """Execute the effects of agreements and keep their deadlines, until cancelled."""
    punching = context.peers.punching
    punching.effects, effects = trio.open_memory_channel[Effect](EFFECTS_MAX)
    punching.agree = partial(agreed, context)
    punching.open = partial(open_connection, context)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tick, context)
            async for effect in effects:
                nursery.start_soon(_execute, context, effect)
    finally:
        punching.agree = punching.open = None
        for ports in punching.ports.values():
            close(ports)
        punching.ports.clear()


@asynccontextmanager
async def agreed(context: Context, peer: PeerId, about: str, count: int) -> AsyncIterator[Agreed]:
    """Offer `peer` to punch `count` connections, as the TLS client, and yield the agreement. Our
    ports stay open during the `async with` block.

    Raises:
        PeerError: no member observes our ports, or the peer does not agree.
    """
    began_s = context.now()
    context.peers.punching.observed.note(context.me, count, began_s)
    ports = await observe_ports(context, peer, count)
    observing_s = context.now() - began_s
    try:
        found = await _offer(context, peer, about, ports)
        places = tuple(_place(context, peer, each) for each in found.theirs)
        sources = tuple(each.source for each in ports)
        yield Agreed(found.start_at, sources, places, observing_s)
    finally:
        close(ports)


async def _offer(context: Context, peer: PeerId, about: str, ports: Iterable[Observation]) -> Punch:
    """Offer, and return the agreement. Raises PeerError."""
    punching, nonce = context.peers.punching, os.urandom(NONCE_BYTES)
    punching.offered[peer, nonce], outcome = trio.open_memory_channel[Punch | PeerError](1)
    seen = tuple(each.seen for each in ports)
    found: Punch | PeerError = PeerTooSlow("it did not agree to punch in time", peer=peer)
    try:
        _do(context, punching.sessions.offer(peer, about, seen, nonce=nonce, now=context.now()))
        with trio.move_on_after(AGREE_S):
            found = await outcome.receive()
    finally:
        del punching.offered[peer, nonce]
    if isinstance(found, Punch):
        return found
    raise found


def _give(context: Context, peer: PeerId, nonce: bytes, found: Punch | PeerError) -> None:
    """Give its outcome to an agreement that this node has offered. Only the first one counts."""
    channel = context.peers.punching.offered.get((peer, nonce))
    if channel is not None:
        with suppress(trio.WouldBlock):
            channel.send_nowait(found)


def _receive(context: Context, peer: PeerId, payload: bytes, sightings: Sightings) -> bytes:
    """Handle a message of `peer`, and return the empty reply.
    Raises NotAuthorised, RemoteProtocolError."""
    punching = context.peers.punching
    if punching.agree is None or not _is_heard(context, peer):
        raise NotAuthorised("only members punch holes with each other", peer=peer)
    message = decode(payload)
    if isinstance(message, PunchOffer) and (why := _refusal(context, peer, message)):
        raise NotAuthorised(why, peer=peer)
    if context.peers.is_visitor(peer) and not punching.visitor_messages.consume(
        peer, 1, context.now()
    ):
        raise TryLater(
            "this node accepts only a few messages per second from peers that only fetch"
        )
    _do(context, punching.sessions.receive(peer, message, sightings, now=context.now()))
    return b""


def _is_heard(context: Context, peer: PeerId) -> bool:
    """Return whether one of the two may punch in order to fetch from the other. Members may."""
    may = context.peers.may_fetch_in_every_way
    return may(peer, context.me) or may(context.me, peer)


def _refusal(context: Context, peer: PeerId, offer: PunchOffer) -> str:
    """Return why `peer` may not offer this; "" if it may. Only this node's own offers count while
    it is a visitor."""
    if not context.peers.may_fetch_in_every_way(peer, context.me):
        return "only members are asked to punch holes"
    if context.peers.is_visitor(peer) and offer.about != CHUNKS:
        return "peers that are not members punch holes only to fetch chunks"
    return ""


def _do(context: Context, effects: Iterable[Effect]) -> None:
    """Let the task execute `effects`, and reconsider its deadline."""
    punching = context.peers.punching
    for effect in effects:
        try:
            assert punching.effects is not None
            punching.effects.send_nowait(effect)
        except trio.WouldBlock:
            context.peers.report_misbehaviour("punch-lost", effect.peer)
    punching.moved.set()


async def _tick(context: Context) -> None:
    punching = context.peers.punching
    while True:
        punching.moved = trio.Event()
        with trio.move_on_after(max(punching.sessions.next_deadline() - context.now(), 0.0)):
            await punching.moved.wait()
        _do(context, punching.sessions.tick(context.now()))
        await trio.lowlevel.checkpoint()


async def _execute(context: Context, effect: Effect) -> None:
    punching = context.peers.punching
    match effect:
        case Send():
            await _send(context, effect)
        case Gather():
            await _gather(context, effect)
        case Punch(dials=False):
            await _serve(context, effect)
        case Punch(peer, nonce):
            _give(context, peer, nonce, effect)
        case Failed(peer, nonce, _, reason, ours=True):
            _give(context, peer, nonce, PeerUnreachable(reason, peer=peer))
        case Failed(peer, nonce, about, reason):
            close(punching.ports.pop((peer, nonce), ()))
            _note_failure(context, peer, about, reason)


async def _send(context: Context, send: Send) -> None:
    """Send a message, unless the same one is still on its way. If our own offer cannot be
    delivered, its agreement fails at once."""
    punching, peer, message = context.peers.punching, send.peer, send.message
    key = peer, message.nonce, type(message)
    if key in punching.on_the_way:
        return
    punching.on_the_way.add(key)
    try:
        await forwarding.request(
            context,
            peer,
            PUNCH_PROTOCOL,
            encode(message),
            deadline_s=SEND_S,
            bytes_max=0,
            may_connect=False,
        )
    except (PeerError, RemoteProtocolError) as exc:
        told = {"reason": exc.what, "evidence": list(exc.evidence)}
        context.peers.report_misbehaviour("punch-not-sent", peer, **told)
        if isinstance(message, PunchOffer):
            lost = PeerUnreachable(f"it does not get our offer: {exc.what}", peer=peer)
            _give(context, peer, message.nonce, lost)
    else:
        punching.sessions.delivered(peer, message)
    finally:
        punching.on_the_way.discard(key)


async def _gather(context: Context, gather: Gather) -> None:
    """Answer an offer: with as many observed ports as the peer wants connections, or with a
    refusal."""
    punching, key = context.peers.punching, (gather.peer, gather.nonce)
    ports: list[Observation] = []
    why = unwanted(context, gather.peer, gather.about, gather.count)
    shared_by = VISITORS if context.peers.is_visitor(gather.peer) else gather.peer
    if not why and not punching.observed.consume(shared_by, gather.count, context.now()):
        why = "this node has lately observed too many ports for you"
    if not why:
        try:
            await _know_certificate(context, gather.peer)
            ports = await take_ports(context, gather.peer, gather.about, gather.count)
        except PeerError as exc:
            why = exc.what
    if why:
        _do(context, punching.sessions.refuse(*key, why, now=context.now()))
        return
    seen = tuple(each.seen for each in ports)
    effects = punching.sessions.gathered(*key, seen, now=context.now())
    if effects:
        punching.ports[key] = ports
    else:
        close(ports)  # The agreement has ended in the meantime.
    _do(context, effects)


async def _serve(context: Context, punch: Punch) -> None:
    """Punch, as the end that receives the hellos."""
    peer, about, began_s = punch.peer, punch.about, context.now()
    ports = context.peers.punching.ports.pop((peer, punch.nonce))
    faults: list[str] = []

    async def serve_one(port: LocalPort, there: ExternalAddress) -> None:
        dialling = DialHandle()
        try:
            place = _place(context, peer, there)
            work = partial(punch_and_serve, context.plane.listener, place, port, dialling=dialling)
            await in_thread(work, stop=dialling.give_up, limiter=THREADS)
        except P2PTrainError as exc:
            faults.append(exc.what)

    try:
        await trio.sleep(max(punch.start_at - context.now(), 0.0))
        context.peers.punching.calling.add((peer, about))
        context.changes.notify_all()
        async with trio.open_nursery() as nursery:
            for observed, there in zip(ports, punch.theirs, strict=True):
                nursery.start_soon(serve_one, observed.source, there)
    finally:
        context.peers.punching.calling.discard((peer, about))
        close(ports)
    if good := len(ports) - len(faults):
        context.peers.punching.note_reached(peer, context.now())
        seconds = context.now() - began_s
        context.journal.write("punched", peer=peer, about=about, streams=good, seconds=seconds)
    if faults:
        _note_failure(context, peer, about, faults[0])
    context.changes.notify_all()


def _note_failure(context: Context, peer: PeerId, about: str, reason: str) -> None:
    failed = context.peers.punching.failed
    failed.pop((peer, about), None)
    failed[peer, about] = reason
    if len(failed) > FAILED_MAX:
        del failed[next(iter(failed))]
    context.peers.report_misbehaviour("punch-failed", peer, purpose=about, reason=reason)
    context.changes.notify_all()


async def _know_certificate(context: Context, peer: PeerId) -> None:
    """Ask for the certificate of `peer` if its heartbeat has not brought it. Raises PeerError."""
    if context.peers.table.endpoint(peer) is not None:
        return
    if await introduced(context, peer, may_connect=False) is None:
        raise PeerUnreachable("its certificate is not known", peer=peer)


def _place(context: Context, peer: PeerId, there: ExternalAddress) -> Endpoint:
    """Return where to call a port of `peer`. Raises PeerUnreachable: its certificate is unknown."""
    known = context.peers.table.endpoint(peer)
    if known is None:
        raise PeerUnreachable("its certificate is not known", peer=peer)
    return replace(known, host=there.host, port=there.port, others=())

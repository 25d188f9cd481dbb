"""The ways in which this node opens a data connection: it dials, or both ends call each other.

Every way has the same signature, and `ways_to` lists them in the order in which they are tried.
`relays` has the last way, through a third member.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from p2ptrain.dataplane import (
    DialHandle,
    Endpoint,
    PeerSocket,
    dial,
    punch_and_dial,
)
from p2ptrain.errors import PeerUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.node.connecting.opening import Opening, Way, claim_or_end, open_each
from p2ptrain.node.gossip.reachability import is_dialable
from p2ptrain.node.state.context import Context

AGAIN_S = 0.3
"""Pause in seconds before a peer is dialled again."""

RELAY_S = 3.0
"""Seconds before the opening's deadline at which the relay's turn begins at the latest. A relayed
connection takes five round trips, and up to three relays are tried."""

NEAR_S = 1.5
"""Deadline in seconds of a dial of a peer that cannot be dialled from other sites. It may be behind
the same router, and then it answers within milliseconds."""

Dials = Callable[[Context, Opening], Awaitable[None]]


def ways_to(
    context: Context, opening: Opening, dials: Dials | None = None, relayed: Way | None = None
) -> list[Way]:
    """Return the ways to the peer, most promising first. `dials` replaces `dial_once`. `relayed`
    connects through a relay. It is used only if the peer says that it cannot be dialled, and if
    punching does not lead to it."""
    dialable = is_dialable(context, opening.peer)
    first: Way = partial(dials or dial_once, context)
    if not dialable:
        first = partial(dial_once, context, deadline_s=NEAR_S)
    if not can_punch(context, opening.peer):
        return [first]
    punches: Way = partial(punch, context)
    if dialable:
        return [first, punches]
    if relayed is None:
        return [punches, first]
    if context.peers.punching.has_lately_failed(opening.peer, context.now()):
        return [first, relayed, punches]
    punches, relayed = after_punching(context, punches, relayed)
    return [punches, first, relayed]


def after_punching(context: Context, punches: Way, relayed: Way) -> tuple[Way, Way]:
    """Return both ways such that `relayed` begins when `punches` has failed, and RELAY_S before the
    opening's end at the latest. The failure is remembered: the next time, the relay comes first.

    Both ends of an edge know when their punching failed, so they begin at about the same time."""
    over = trio.Event()

    async def first(opening: Opening) -> None:
        try:
            await punches(opening)
        finally:
            over.set()

    async def second(opening: Opening) -> None:
        with trio.move_on_after(max(opening.ends - RELAY_S - context.now(), 0.0)):
            await over.wait()
        if opening.missing:
            context.peers.punching.note_failed(opening.peer, context.now())
            await relayed(opening)

    return first, second


def can_punch(context: Context, peer: PeerId) -> bool:
    """Return whether this node may offer `peer` to punch holes: `peer` is a member, and this node
    is a member or, in order to fetch chunks, a visitor."""
    agrees = context.peers.punching.agree is not None
    return agrees and context.peers.may_fetch_in_every_way(context.me, peer)


async def dial_once(context: Context, opening: Opening, deadline_s: float | None = None) -> None:
    """Dial the peer at its announced addresses."""
    endpoint = context.peers.table.endpoint(opening.peer)
    await dial_at(context, opening, endpoint, deadline_s or context.timing.reduce.dial_s)


async def punch(context: Context, opening: Opening) -> None:
    """Agree with the peer to call each other at the same time. This node is the TLS client."""
    began_s, numbers, punching = context.now(), opening.missing, context.peers.punching
    made: list[int] = []
    if not numbers:
        return  # Another way has just opened the last connection.
    if punching.agree is None:
        raise PeerUnreachable("this node is about to stop", peer=opening.peer)
    async with punching.agree(opening.peer, opening.about, len(numbers)) as found:

        def once(number: int, handle: DialHandle) -> PeerSocket:
            place = numbers.index(number)
            connection = punch_and_dial(
                context.plane.credentials,
                found.places[place],
                opening.hellos[number],
                found.ports[place],
                encrypted=context.manifest.encrypted,
                dialling=handle,
                wanted=partial(claim_or_end, opening, number, handle),
            )
            made.append(number)
            return connection

        await trio.sleep(max(found.start_at - context.now(), 0.0))
        try:
            await open_each(opening, numbers, once)
        finally:  # This task is cancelled as soon as the last connection is open.
            if made:
                punching.note_reached(opening.peer, context.now())
                context.journal.write(
                    "punched",
                    peer=opening.peer,
                    about=opening.about,
                    streams=len(made),
                    seconds=context.now() - began_s,
                    observing_s=found.observing_s,
                )


async def dial_at(
    context: Context, opening: Opening, endpoint: Endpoint | None, deadline_s: float
) -> None:
    """Dial the missing connections once, and record how long that took."""
    peer, took_s = opening.peer, list[float]()
    if endpoint is None or not context.peers.may_be_at(endpoint):
        why = "it has not announced its data plane's address"
        where = "its data plane is on a loopback address"
        raise PeerUnreachable(why if endpoint is None else where, peer=peer)
    limit_s = min(deadline_s, max(opening.ends - context.now(), AGAIN_S))

    def once(number: int, handle: DialHandle) -> PeerSocket:
        began_s = time.monotonic()
        connection = dial(
            context.plane.credentials,
            endpoint,
            opening.hellos[number],
            deadline_s=limit_s,
            encrypted=context.manifest.encrypted,
            dialling=handle,
            wanted=partial(claim_or_end, opening, number, handle),
        )
        took_s.append(time.monotonic() - began_s)
        return connection

    try:
        await open_each(opening, opening.missing, once)
    finally:
        for seconds in took_s:
            context.peers.paths.connected(peer, seconds)

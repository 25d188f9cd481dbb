"""The ways in which this node opens a data connection: it dials, or both ends call each other.

Every way has the same signature. `sequence` decides the order, and `in_order` lists the ways in
that order. `reverse` has the reverse dial for chunks, and `relays` the last way, through a third
member.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import trio

from p2ptrain.dataplane import (
    DialHandle,
    Endpoint,
    PeerSocket,
    dial,
    punch_and_dial,
)
from p2ptrain.dataplane.racing import OVERLAP_S
from p2ptrain.errors import PeerUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.node.connecting.opening import Opening, Way, claim_or_end, open_each
from p2ptrain.node.connecting.sequence import Begins, Sequence, Step
from p2ptrain.node.state.context import Context

AGAIN_S = 0.3
"""Pause in seconds before a peer is dialled again."""

RELAY_S = 3.0
"""Seconds before the opening's deadline at which the relay's turn begins at the latest. A relayed
connection takes five round trips, and up to three relays are tried."""

NEAR_S = 1.5
"""Deadline in seconds of a dial of a peer that cannot be dialled from other sites. It may be behind
the same router, and then it answers within milliseconds."""


def in_order(
    context: Context, order: Sequence, ways: Mapping[Step, Way], *, near: Way | None = None
) -> list[Way]:
    """Return the ways of the steps in `order`. Steps without a way are left out. `near` is the way
    of a brief dial."""
    chosen = [(turn, near if turn.is_brief else ways.get(turn.step)) for turn in order.turns]
    found = {turn.step: way for turn, way in chosen if way is not None}
    begins = {turn.step: turn.begins for turn in order.turns}
    if Step.PUNCH in found and Step.RELAY in found:
        if begins[Step.RELAY] is Begins.AFTER_CALLS:
            both = after_calls(context, found[Step.PUNCH], found[Step.RELAY])
            found[Step.PUNCH], found[Step.RELAY] = both
        elif begins[Step.PUNCH] is Begins.AFTER_FAILURE:
            both = after_failure(found[Step.RELAY], found[Step.PUNCH])
            found[Step.RELAY], found[Step.PUNCH] = both
    return [found[turn.step] for turn, way in chosen if way is not None]


def after_calls(context: Context, punches: Way, relayed: Way) -> tuple[Way, Way]:
    """Return both ways such that `relayed` begins OVERLAP_S after both ends have begun to call each
    other, at once when `punches` has failed, and RELAY_S before the opening's end at the latest. If
    `relayed` began and nothing was punched, that is remembered: then the relay comes first.

    Both ends of an edge know when they call each other, so they begin at about the same time."""
    over = trio.Event()

    async def first(opening: Opening) -> None:
        try:
            await punches(opening)
        finally:
            over.set()

    async def second(opening: Opening) -> None:
        punching, began_s = context.peers.punching, context.now()
        with trio.move_on_after(max(opening.ends - RELAY_S - began_s, 0.0)):
            await _calls_take_long(opening, over)
        if not opening.missing:
            return
        try:
            await relayed(opening)
        finally:
            if not punching.has_worked_since(opening.peer, began_s):
                punching.note_failed(opening.peer, context.now())

    return first, second


async def _calls_take_long(opening: Opening, over: trio.Event) -> None:
    """Return OVERLAP_S after the calls have begun, or when punching is over."""

    async def until_late() -> None:
        await opening.calling.wait()
        await trio.sleep(OVERLAP_S)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(until_late)
        await over.wait()
        nursery.cancel_scope.cancel()


def after_failure(first: Way, second: Way) -> tuple[Way, Way]:
    """Return both ways such that `second` begins once `first` has failed."""
    over = trio.Event()

    async def one(opening: Opening) -> None:
        try:
            await first(opening)
        finally:
            over.set()

    async def other(opening: Opening) -> None:
        await over.wait()
        if opening.missing:
            await second(opening)

    return one, other


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
        opening.calling.set()
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

"""Connect to a member through a relay, when dialling and hole punching have failed.

The neighbours of a reduce both know that they need a connection. They choose the relays in the same
order (`dataplane/relaying/choice`), and meet there without a message: one calls `dial_relayed`, the
other `serve_relayed`. A member that fetches chunks asks the other member first to meet it
(`meetings.ask_to_meet`).

A fault on the way is a RelayFault. It says nothing about the member at the other end, so nobody may
blame that member for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import trio

from p2ptrain.dataplane import DialHandle, Endpoint, PeerSocket, SecureSocket
from p2ptrain.dataplane.relaying import (
    EdgeKey,
    RelayKey,
    RelayUnreachable,
    Route,
    dial_through,
    first_that_works,
    ranked,
    serve_through,
)
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread


def relay_offers(context: Context) -> dict[PeerId, Endpoint]:
    """Return the members that offer to relay and that this node may dial."""
    state, peers = context.ledger.snapshot, context.peers
    return {
        record.peer: record.endpoint
        for record in peers.table
        if record.heartbeat.relays
        and record.heartbeat.dialable
        and record.endpoint is not None
        and state.is_member(record.peer)
        and not peers.is_down(record.peer)
        and peers.may_be_at(record.endpoint)
    }


def routes(context: Context, peer: PeerId, key: RelayKey) -> list[Route]:
    """Return the ways to `peer` through relays, in the order in which to try them. Both ends of an
    edge compute the same order. For a fetch, only the dialler does. Raises RelayUnreachable: the
    peer's certificate is not known, or no member offers to relay."""
    offers, there = relay_offers(context), context.peers.table.endpoint(peer)
    step, attempt = (key.step, key.attempt) if isinstance(key, EdgeKey) else (0, key.nonce[0])
    chosen = ranked(context.run, (context.me, peer), step, attempt, offers)
    if there is None or not chosen:
        why = "its certificate is not known" if there is None else "no member offers to relay"
        raise RelayUnreachable(why, peer="")
    return [Route(offers[relay], there, key) for relay in chosen]


async def dial_relayed(
    context: Context,
    ways: Sequence[Route],
    hello: Mapping[str, object],
    *,
    deadline_s: float,
    limiter: trio.CapacityLimiter | None = None,
) -> PeerSocket:
    """Return a connection to the peer of `ways` through the first relay that works. The peer calls
    `serve_relayed` with the same relays. Raises what `first_that_works` raises."""
    dialling = DialHandle()
    work = partial(
        dial_one_of, context, ways, hello, deadline_s=deadline_s, dialling=dialling, wanted=None
    )
    return await in_thread(work, stop=dialling.give_up, limiter=limiter)


def dial_one_of(
    context: Context,
    ways: Sequence[Route],
    hello: Mapping[str, object],
    *,
    deadline_s: float,
    dialling: DialHandle,
    wanted: Callable[[], bool] | None,
) -> PeerSocket:
    """Do the work of `dial_relayed` in this thread, which blocks. `wanted` is as for `dial`."""

    def dial_one(route: Route, deadline_s: float, join_s: float) -> PeerSocket:
        return dial_through(
            context.plane.credentials,
            route,
            hello,
            deadline_s=deadline_s,
            join_s=join_s,
            encrypted=context.manifest.encrypted,
            dialling=dialling,
            wanted=wanted,
        )

    return first_that_works(ways, dial_one, deadline_s=deadline_s, dialling=dialling)


async def serve_relayed(
    context: Context,
    ways: Sequence[Route],
    *,
    deadline_s: float,
    limiter: trio.CapacityLimiter | None = None,
) -> None:
    """Let the peer of `ways` connect to this node through the first relay that works. Return when
    its hello has been answered. The listener's handlers serve the connection, so `ring_inbox` has a
    stream of a reduce. Raises what `first_that_works` raises."""
    dialling = DialHandle()

    def serve_one(route: Route, deadline_s: float, join_s: float) -> None:
        serve_through(
            context.plane.credentials,
            route,
            context.plane.listener,
            deadline_s=deadline_s,
            join_s=join_s,
            encrypted=context.manifest.encrypted,
            dialling=dialling,
        )

    work = partial(first_that_works, ways, serve_one, deadline_s=deadline_s, dialling=dialling)
    await in_thread(work, stop=dialling.give_up, limiter=limiter)


def blamable(
    suspects: Sequence[PeerId], connections: Mapping[tuple[PeerId, int], SecureSocket]
) -> tuple[PeerId, ...]:
    """Return the suspects of a failed reduce without those that this node reaches through a relay:
    the relay may be at fault. `connections` are those of the reduce, by peer and stream. Use this
    for what this node has noticed itself, and not for what neighbours report."""
    return tuple(each for each in suspects if not relays_to(each, connections))


def relays_to(
    peer: PeerId, connections: Mapping[tuple[PeerId, int], SecureSocket]
) -> frozenset[PeerId]:
    """Return the relays through which `connections` lead to `peer`; none if they are direct."""
    found = (each for (other, _), each in connections.items() if other == peer)
    return frozenset(via for each in found if (via := relay_of(each)) is not None)


def relay_of(connection: SecureSocket) -> PeerId | None:
    """Return the relay that the connection goes through; None if it is direct."""
    return connection.via if isinstance(connection, PeerSocket) else None

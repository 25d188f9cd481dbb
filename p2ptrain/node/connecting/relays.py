"""The way to a peer through a relay. `sequence` decides when it begins.

For the streams of a reduce, both ends compute the same relays and come without a message. For
chunks, the member that fetches asks the other one to come (`connecting/chunk_relays`).

A connection of another way that is made first wins: the end that dials claims each connection just
before its hello, and the relay's half is then given up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from p2ptrain.dataplane import DialHandle, PeerSocket
from p2ptrain.dataplane.relaying import RelayKey, RelayUnreachable, Route
from p2ptrain.dataplane.sockets import RelayFault
from p2ptrain.errors import PeerError, PeerUnreachable
from p2ptrain.node.connecting.opening import Opening, claim_or_end, open_each
from p2ptrain.node.relaying.relayed_links import dial_one_of, routes, serve_relayed
from p2ptrain.node.state.context import Context

AGAIN_S = 0.5
"""Pause in seconds before the relays are tried again."""

LEFT_S_MIN = 1.0
"""Minimum number of seconds for a try: five round trips of 200 ms."""

KeyOf = Callable[[int], RelayKey]
"""Returns the key of a connection by its number."""


async def dial_edge(
    context: Context, key_of: KeyOf, faults: list[RelayFault], opening: Opening
) -> None:
    """Open the missing streams through relays, as the TLS client. The peer calls `serve_edge`. This
    adds the failure of each try to `faults`.

    Raises:
        RelayFault: no relay led to the peer.
        PeerUnreachable: no member offers to relay.
    """

    async def once() -> None:
        await dial_all(context, opening, routes_to(context, key_of, opening))

    await _until_open(context, opening, once, faults)


async def serve_edge(
    context: Context, key_of: KeyOf, faults: list[RelayFault], opening: Opening
) -> None:
    """Let the peer open the missing streams through relays. The ring inbox gets them. Otherwise as
    `dial_edge`."""

    async def serve(ways: list[Route], failed: list[PeerError]) -> None:
        left_s = _left_s(context, opening)
        try:
            await serve_relayed(context, ways, deadline_s=left_s, limiter=opening.limiter)
        except PeerError as exc:  # A relay's fault, or this node has given up.
            failed.append(exc)

    async def once() -> None:
        failed, found = list[PeerError](), routes_to(context, key_of, opening)
        async with trio.open_nursery() as nursery:
            for ways in found.values():
                nursery.start_soon(serve, ways, failed)
        if failed:
            raise failed[0]

    await _until_open(context, opening, once, faults)
    await opening.complete.wait()  # The inbox gets each stream a moment after its hello.


async def _until_open(
    context: Context,
    opening: Opening,
    once: Callable[[], Awaitable[None]],
    faults: list[RelayFault],
) -> None:
    """Repeat `once` while there is time. The other end may come later than this one, and a relay
    then says that it did not come. Raises RelayFault: the last one."""
    while True:
        try:
            return await once()
        except RelayFault as exc:
            faults.append(exc)
            opening.met.append(f"relay {exc.peer}: {exc.what}")
            if _left_s(context, opening) <= LEFT_S_MIN:
                raise
        await trio.sleep(AGAIN_S)


def routes_to(context: Context, key_of: KeyOf, opening: Opening) -> dict[int, list[Route]]:
    """Return the routes of each missing connection, by its number. Raises PeerUnreachable: there
    are none. This is not a RelayFault, because no relay is at fault."""
    try:
        return {it: routes(context, opening.peer, key_of(it)) for it in opening.missing}
    except RelayUnreachable as exc:
        raise PeerUnreachable(exc.what, peer=opening.peer) from exc


async def dial_all(context: Context, opening: Opening, ways: dict[int, list[Route]]) -> None:
    """Open these connections, each through the first of its relays that works. Raises PeerError or
    RemoteProtocolError: one of them cannot be opened."""
    left_s = _left_s(context, opening)

    def once(number: int, handle: DialHandle) -> PeerSocket:
        return dial_one_of(
            context,
            ways[number],
            opening.hellos[number],
            deadline_s=left_s,
            dialling=handle,
            wanted=partial(claim_or_end, opening, number, handle),
        )

    await open_each(opening, list(ways), once)


def _left_s(context: Context, opening: Opening) -> float:
    return max(opening.ends - context.now(), LEFT_S_MIN)

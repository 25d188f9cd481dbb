"""Open one connection with a peer in every way, for everything but reduces."""

from __future__ import annotations

from functools import partial

from p2ptrain.dataplane import Endpoint, SecureSocket
from p2ptrain.node.connecting.chunk_relays import dial_for_chunks
from p2ptrain.node.connecting.opening import Opening, open_all
from p2ptrain.node.connecting.ways import dial_at, ways_to
from p2ptrain.node.relaying.relayed_links import relay_of
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.punching import Hello


async def open_connection(
    context: Context, endpoint: Endpoint, hello: Hello, about: str, deadline_s: float
) -> SecureSocket:
    """Open a connection with the peer of `endpoint`, as the TLS client. `about` says to the peer
    what it is for; see `punching/purposes`. The caller has to close it.

    Raises:
        PeerError, RemoteProtocolError: the peer was not reached within `deadline_s`.
    """
    found: list[SecureSocket] = []

    def keep(number: int, connection: SecureSocket) -> None:
        found.append(connection)

    async def dial_there(context: Context, opening: Opening) -> None:
        await dial_at(context, opening, endpoint, deadline_s)

    ends = context.now() + deadline_s
    opening = Opening(endpoint.peer, about, {0: hello}, ends, keep)
    try:
        ways = ways_to(context, opening, dial_there, partial(dial_for_chunks, context))
        await open_all(opening, ways, left_s=deadline_s)
    except BaseException:
        for connection in found:
            connection.close()
        raise
    if (relay := relay_of(found[0])) is not None:
        context.peers.relaying.note_reached(endpoint.peer, context.now())
        context.journal.write("relayed", peer=endpoint.peer, relays=[relay], about=about)
    return found[0]

"""The reverse dial of a connection for chunks: the source dials this node, because this node cannot
dial it. Both ends of an edge in a reduce know that they need each other, so edges need no request.
"""

from __future__ import annotations

from functools import partial

from p2ptrain.dataplane import DialHandle, PeerSocket
from p2ptrain.dataplane.relaying import Route, greet_caller
from p2ptrain.errors import PeerUnreachable
from p2ptrain.node.connecting.opening import Opening, claim_or_end, open_each
from p2ptrain.node.relaying.meetings import ask_to_meet, new_fetch_key
from p2ptrain.node.state.context import Context

CALL_S = 5.0
"""Seconds in which the peer's call must arrive once it has agreed, and seconds for the handshakes
that follow. The opening's own deadline ends both earlier."""


async def ask_to_dial(context: Context, opening: Opening) -> None:
    """Ask the peer to dial this node, and open connection 0 over its call, as the TLS client.

    Raises:
        PeerError, RemoteProtocolError: the peer does not call, for instance because it does not see
            this node at an address that this node announces.
    """
    peer, began_s = opening.peer, context.now()
    there, calls = context.peers.table.endpoint(peer), context.peers.relaying.reverse_dials
    if there is None or calls is None:
        raise PeerUnreachable("its certificate is not known", peer=peer)
    key, made = new_fetch_key(context), list[int]()
    with calls.expect(key, peer) as call:
        await ask_to_meet(context, Route(context.plane.endpoint, there, key))

        def once(number: int, handle: DialHandle) -> PeerSocket:
            sock, received = call.wait(deadline_s=CALL_S, dialling=handle)
            connection = greet_caller(
                context.plane.credentials,
                there,
                sock,
                opening.hellos[number],
                received=received,
                deadline_s=CALL_S,
                encrypted=context.manifest.encrypted,
                wanted=partial(claim_or_end, opening, number, handle),
            )
            made.append(number)
            return connection

        try:
            await open_each(opening, [0], once)
        finally:  # This task is cancelled as soon as the connection is open.
            if made:
                took_s = context.now() - began_s
                context.journal.write("reverse-dialled", peer=peer, seconds=took_s)

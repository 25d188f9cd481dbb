"""Open a connection for chunks through a relay, at which the peer agrees to meet this node."""

from __future__ import annotations

from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.node.connecting.opening import Opening
from p2ptrain.node.connecting.relays import dial_all, routes_to
from p2ptrain.node.relaying.meetings import ask_to_meet, new_fetch_key
from p2ptrain.node.state.context import Context


async def dial_for_chunks(context: Context, opening: Opening) -> None:
    """Open connection 0 through a relay. Raises PeerError or RemoteProtocolError: the peer does not
    come to any relay, or no relay works."""
    last: PeerError | RemoteProtocolError | None = None
    for route in routes_to(context, lambda _: new_fetch_key(context), opening).get(0, ()):
        try:
            await ask_to_meet(context, route)
            return await dial_all(context, opening, {0: [route]})
        except (PeerError, RemoteProtocolError) as exc:
            opening.met.append(exc.what)
            last = exc
    if last is not None:
        raise last

"""Open one connection with a peer in every way, for everything but reduces."""

from __future__ import annotations

from functools import partial

from p2ptrain.dataplane import Endpoint, SecureSocket
from p2ptrain.ids import PeerId
from p2ptrain.node.connecting.chunk_relays import dial_for_chunks
from p2ptrain.node.connecting.opening import Opening, Way, open_all
from p2ptrain.node.connecting.reverse import ask_to_dial
from p2ptrain.node.connecting.sequence import Ends, Step, sequence
from p2ptrain.node.connecting.ways import (
    NEAR_S,
    can_punch,
    dial_at,
    dial_once,
    in_order,
    punch,
)
from p2ptrain.node.gossip.reachability import changes_ports, is_dialable, shares_site
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

    async def dial_there(opening: Opening) -> None:
        await dial_at(context, opening, endpoint, deadline_s)

    ends = context.now() + deadline_s
    opening = Opening(endpoint.peer, about, {0: hello}, ends, keep)
    try:
        ways: dict[Step, Way] = {
            Step.DIAL: dial_there,
            Step.REVERSE_DIAL: partial(ask_to_dial, context),
            Step.PUNCH: partial(punch, context),
            Step.RELAY: partial(dial_for_chunks, context),
        }
        near = partial(dial_once, context, deadline_s=NEAR_S)
        order = sequence(ends_of(context, endpoint.peer))
        await open_all(opening, in_order(context, order, ways, near=near), left_s=deadline_s)
    except BaseException:
        for connection in found:
            connection.close()
        raise
    if (relay := relay_of(found[0])) is not None:
        context.peers.relaying.note_reached(endpoint.peer, context.now())
        context.journal.write("relayed", peer=endpoint.peer, relays=[relay], about=about)
    return found[0]


def ends_of(context: Context, peer: PeerId) -> Ends:
    """Return what is known about this node, the client, and `peer`. Others must have dialled this
    node lately, since the peer would otherwise dial in vain, and first of all."""
    own = context.own_heartbeat
    proven = own.dialled or own.dialable_by_ipv6
    return Ends(
        client_is_dialable=proven and is_dialable(context, context.me, by=peer),
        server_is_dialable=is_dialable(context, peer),
        may_punch=can_punch(context, peer),
        client_changes_ports=changes_ports(context, context.me),
        server_changes_ports=changes_ports(context, peer),
        share_site=shares_site(context, peer),
        punching_failed_s=context.peers.punching.failed_ago_s(peer, context.now()),
    )

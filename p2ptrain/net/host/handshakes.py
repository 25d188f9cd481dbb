"""Limits on the handshakes of peers that dial us, and cleanup after connections that have ended.

libp2p 0.8.1 lets any number of sockets stay open for ten seconds before it knows who has connected.
A few hundred dials per second used up all file descriptors, so the ledger could not open its files.
libp2p also keeps a task for each inbound connection until the host stops, long after the connection
has ended.
"""

from __future__ import annotations

from typing import Any, NoReturn

import trio
from libp2p.network.exceptions import SwarmException

from p2ptrain.address_group import site_of
from p2ptrain.stranger_slots import StrangerSlots

HANDSHAKES_MAX = 128
"""Maximum number of handshakes at the same time. A handshake takes milliseconds of CPU time and
five round trips."""


def bound_handshakes(network: Any, handshakes_max: int) -> None:
    """Apply the limits to all peers that dial this network from now on."""
    places = StrangerSlots(handshakes_max)
    upgrade = network.upgrade_inbound_raw_conn

    async def upgrade_in_a_place(connection: Any, address: Any) -> NoReturn:
        remote = connection.get_remote_address()
        with (
            trio.CancelScope() as scope,
            places.taken(site_of(remote[0]) if remote else "", scope.cancel),
        ):
            muxed = await upgrade(connection, address)
        if scope.cancelled_caught:
            # Without an exception, the caller would wait until the host stops.
            raise SwarmException("another peer's dial took this place")
        await muxed.event_closed.wait()
        raise SwarmException("the connection has ended")

    network.upgrade_inbound_raw_conn = upgrade_in_a_place

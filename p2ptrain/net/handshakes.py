"""Handshakes of those who dial us: few at a time.

libp2p 0.8.1 lets any number of sockets idle for ten seconds before it knows who is there: some
hundred dials a second used up all file descriptors, and the ledger could not open its files.
"""

from __future__ import annotations

import ipaddress
from typing import Any

import trio
from libp2p.network.exceptions import SwarmException

from p2ptrain.net.places import Places

HANDSHAKES_MAX = 128
"""One takes milliseconds of work and five round trips."""


def bound_handshakes(network: Any) -> None:
    """From now on, for all who dial this network."""
    places = Places(HANDSHAKES_MAX)
    upgrade = network.upgrade_inbound_raw_conn

    async def upgrade_in_a_place(connection: Any, address: Any) -> Any:
        with (
            trio.CancelScope() as scope,
            places.taken(_origin(connection.get_remote_address()), scope.cancel),
        ):
            muxed = await upgrade(connection, address)
        if scope.cancelled_caught:
            raise SwarmException("others dial at the same time")
        return muxed

    network.upgrade_inbound_raw_conn = upgrade_in_a_place


def _origin(remote: tuple[str, int] | None) -> str:
    """Whom a socket is counted with: its address, of which with IPv6 everybody has 2^64."""
    if remote is None:
        return ""
    address = ipaddress.ip_address(remote[0].partition("%")[0])
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))

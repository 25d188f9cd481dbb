"""Notice connections that have died, and close them.

All connections are checked at the same time, not one after the other.

libp2p 0.8.1 pings the peers in turn and waits up to `ping_timeout` for each. So a few peers that do
not answer pings kept it from noticing other connections that had died. A stranger can be such a
peer.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import trio
from libp2p.abc import INetConn
from libp2p.network.health.monitor import ConnectionHealthMonitor
from libp2p.network.health.ping_probe import ping_connection
from libp2p.peer.id import ID

CHECKS_AT_ONCE = 64
"""Maximum number of checks at the same time. With 512 connections to silent peers, one round takes
eight timeouts: 64 s instead of 68 minutes."""

CLOSE_S = 5.0

CHECK_S = 20.0
"""Maximum seconds for one check: the ping, and closing the connection if the ping fails."""

SILENT_S = 5.0
"""Seconds within which an older connection of a peer that has connected again must answer."""

_check_all = ConnectionHealthMonitor._check_all_connections


def check_connections_concurrently() -> None:
    """Apply this to every host of this process from now on."""
    setattr(ConnectionHealthMonitor, _check_all.__name__, _check_all_at_once)


async def close_if_silent(connection: INetConn) -> None:
    """Close `connection` unless the peer answers a ping on it within SILENT_S. Use this for a peer
    that has connected again: perhaps it has a new address, and its old connection is dead.
    Otherwise its messages would go to the dead connection until the next regular check."""
    result = await ping_connection(
        connection, ping_timeout=SILENT_S, negotiate_timeout=int(SILENT_S)
    )
    if not result.success:
        await close_connection(connection)


async def close_connection(connection: INetConn) -> None:
    """Close the socket first: libp2p would send a goodbye message, and might wait for ever."""
    with shielded_for(CLOSE_S), suppress(Exception):
        muxed: Any = connection.muxed_conn
        await muxed.secured_conn.close()
        await connection.close()


def shielded_for(seconds: float) -> trio.CancelScope:
    """Return a scope that shields work from cancellation, but ends it itself after `seconds`."""
    scope = trio.CancelScope()
    scope.deadline = trio.current_time() + seconds
    scope.shield = True
    return scope


async def _check_all_at_once(monitor: ConnectionHealthMonitor) -> None:
    """Replace libp2p's own function, which is called once in each check interval."""
    limit = trio.CapacityLimiter(CHECKS_AT_ONCE)

    async def check(peer: ID, connection: INetConn) -> None:
        async with limit:
            with trio.move_on_after(CHECK_S):
                await monitor._check_connection_health(peer, connection)

    async with trio.open_nursery() as nursery:
        for peer, connections in list(monitor.swarm.connections.items()):
            for connection in list(connections):
                nursery.start_soon(check, peer, connection)

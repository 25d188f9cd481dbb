"""Notice that this machine has changed its network, and reconnect at once.

A laptop that changes from one network to another keeps its old connections, which are dead: nobody
tells it so, and TCP waits for many minutes. So the connections of an address that this machine no
longer has are closed, the known peers are dialled again, and a heartbeat tells the new addresses.
The router's ports are not this task's business (`port_mapping`).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from p2ptrain.node.gossip.own_addresses import OwnAddresses, own_addresses
from p2ptrain.node.state.context import Context

LOOK_S = 2.0
"""Interval at which the addresses of this machine are read from the system."""


async def notice_new_network(
    context: Context, *, look: Callable[[], OwnAddresses] = own_addresses, look_s: float = LOOK_S
) -> None:
    """Watch the addresses of this machine, which `look` returns, until cancelled."""
    before = look()
    while True:
        await trio.sleep(look_s)
        now = look()
        if _outward(now) != _outward(before):
            context.journal.write("network-changed", now=_outward(now), before=_outward(before))
            context.own_heartbeat.moves += 1
            context.own_heartbeat.send_now()
            context.changes.notify_all()
        if set(before.hosts) - set(now.hosts):
            context.network.close_connections_except(now.hosts)
        before = now


def _outward(own: OwnAddresses) -> list[str]:
    return [host for host in (own.lan_host, own.ipv6_host) if host]

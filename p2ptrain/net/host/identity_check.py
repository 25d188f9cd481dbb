"""Check which peer answers at an address, without keeping a connection.

The check makes one TCP connection and runs the security handshake, in which the other side proves
its identity. The connection is then closed before libp2p registers it. A registered second
connection would be worse: when it ends, libp2p's gossip drops the peer, although the first
connection is still open.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from libp2p.abc import IHost
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from p2ptrain.ids import PeerId
from p2ptrain.net.host.health_checks import shielded_for

CLOSE_S = 1.0


async def prove_identity(host: IHost, peer: PeerId, transport_address: str) -> None:
    """Connect to `transport_address`, such as /ip4/203.0.113.7/tcp/4201, and let `peer` prove that
    it listens there. The caller sets the deadline. Raises Exception: the proof failed; libp2p does
    not document the types."""
    network: Any = host.get_network()
    expected = ID.from_base58(peer)
    target = Multiaddr(f"{transport_address}/p2p/{peer}")
    raw = await network.transport_manager.transport_for_dialing(target).dial(target)
    try:
        await network.upgrader.upgrade_security(raw, True, expected)
    finally:
        with shielded_for(CLOSE_S), suppress(Exception):
            await raw.close()

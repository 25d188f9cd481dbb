"""Build and run a libp2p host that no peer can bring down.

Most of this module works around faults that we saw in libp2p 0.8.1. This version is pinned, because
some lines use its private attributes. A failure that a peer can cause affects only one stream
handler, one background task or one connection. The module does not know what the host is for.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
from libp2p import new_host
from libp2p.abc import IHost, INetConn, INetStream, ISecureConn
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from p2ptrain.identity import Identity, is_peer_id
from p2ptrain.net.host.bounds import bound_connections, is_crowded
from p2ptrain.net.host.handshakes import HANDSHAKES_MAX, bound_handshakes
from p2ptrain.net.host.health_checks import (
    CLOSE_S,
    check_connections_concurrently,
    close_connection,
    shielded_for,
)
from p2ptrain.net.host.identify_limits import bound_introductions, bound_peerstore
from p2ptrain.net.host.mdns_addresses import announce_dialable_addresses
from p2ptrain.net.host.socket_addresses import report_ipv6_addresses
from p2ptrain.net.host.window_updates import give_credit_by_halves

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 512


class EdNoise(NoiseTransport):
    """libp2p's Noise handshake, restricted to Ed25519 keys: our PeerId supports no other keys."""

    async def secure_inbound(self, conn: Any) -> ISecureConn:
        return await self._checked(await super().secure_inbound(conn))

    async def secure_outbound(self, conn: Any, peer_id: ID) -> ISecureConn:
        return await self._checked(await super().secure_outbound(conn, peer_id))

    async def _checked(self, secured: ISecureConn) -> ISecureConn:
        if not is_peer_id(str(secured.get_remote_peer())):
            await secured.close()
            raise HandshakeFailure("the peer's key is not Ed25519")
        return secured


def quieten() -> None:
    """Silence libp2p's logging. Errors caused by peers are normal, and libp2p also logs on the root
    logger, which would start to print if it had no handler."""
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.NullHandler())


def build_host(
    identity: Identity,
    *,
    announce: Sequence[str] = (),
    mdns: bool = False,
    handshakes_max: int = HANDSHAKES_MAX,
) -> IHost:
    """Return a host that is not running yet."""
    quieten()
    bound_connections()
    bound_introductions()
    report_ipv6_addresses()
    give_credit_by_halves()
    check_connections_concurrently()
    keys: KeyPair = create_new_key_pair(identity.seed)
    host = new_host(
        key_pair=keys,
        sec_opt={NOISE_ID: EdNoise(keys, create_x25519_key_pair().private_key)},
        muxer_opt={TProtocol(YAMUX_ID): Yamux},
        connection_config=_connection_config(),
        announce_addrs=[Multiaddr(address) for address in announce] or None,
        disable_identify_address_discovery=True,
        enable_mDNS=mdns,
    )
    if mdns:
        announce_dialable_addresses(host)
    bound_peerstore(host)
    network: Any = host.get_network()
    # libp2p leaks a token with every inbound connection; after 250 it would refuse all peers.
    network._inbound_limiter = trio.CapacityLimiter(10**9)
    bound_handshakes(network, handshakes_max)
    network._negative_peer_cache._ttl = 2.0  # pause after a failed dial; libp2p's default is 60 s
    network.retry_config = RetryConfig(max_retries=0)  # our callers decide about retries
    network.auto_connector.maybe_connect = _do_nothing  # it would dial every peer it knows of
    network.dial_peer = _refuse_to_dial
    network.set_stream_handler(_contained_handler(network.common_stream_handler))
    return host


def _connection_config() -> ConnectionConfig:
    return ConnectionConfig(
        min_connections=0,
        low_watermark=0,
        high_watermark=CONNECTIONS_MAX,
        max_connections=CONNECTIONS_MAX,
        max_connections_per_peer=1,  # with more, every dial takes 250 ms
        # Without the check, a frozen or unplugged peer is never noticed. The timeout is longer than
        # any stall of our own loop, which would look the same.
        enable_health_monitoring=True,
        health_initial_delay=5.0,
        health_check_interval=15.0,
        ping_timeout=8.0,
        abort_connection_on_ping_failure=True,
    )


async def _do_nothing() -> None:
    return None


async def _refuse_to_dial(peer: ID) -> list[INetConn]:
    """Refuse dials that libp2p starts by itself, for streams to peers that have just disconnected.
    libp2p would try all addresses that the peer ever announced, at once and without a limit, and
    look up their names in trio's shared threads. Our own dials call `dial_addr` with an address."""
    raise SwarmException(f"{peer} is not connected")


StreamHandler = Callable[[INetStream], Awaitable[None]]


def _contained_handler(handler: StreamHandler) -> StreamHandler:
    """Return a stream handler that resets surplus streams, and in which an exception ends only its
    stream."""

    async def contained(stream: INetStream) -> None:
        try:
            if is_crowded(stream.muxed_conn):
                await stream.reset()
            else:
                await handler(stream)
        except Exception as exc:
            log.debug("a stream of %s ended: %r", stream.muxed_conn.peer_id, exc)
            with suppress(Exception):
                await stream.reset()

    return contained


def contain_tasks(manager: Any) -> None:
    """Prevent future background tasks of this libp2p service from ending others when they fail."""
    start = manager.run_task

    def run_task(function: Any, *args: Any, daemon: bool = False, **options: Any) -> None:
        start(function if daemon else contained(function), *args, daemon=daemon, **options)

    manager.run_task = run_task


def contained(function: Any) -> Any:
    """Wrap `function`, which libp2p runs as a task, so that an exception is logged and ends only
    that task."""

    @functools.wraps(function)
    async def contained_function(*args: Any) -> None:
        try:
            await function(*args)
        except Exception as exc:
            log.debug("a task of libp2p ended: %r", exc)

    return contained_function


async def sever(host: IHost, peer: ID) -> None:
    """End every connection with `peer` immediately, even if the peer no longer reads. The socket is
    closed first, because libp2p would send a goodbye message and might wait for ever to do so."""
    for connection in host.get_network().get_connections(peer):
        await close_connection(connection)


def is_open(stream: Any) -> bool:
    """Return whether `stream` is still open, as far as this side knows."""
    return not stream.is_closed


@asynccontextmanager
async def running(host: IHost, listen: list[str]) -> AsyncIterator[None]:
    """Run the host while the block lasts. All its tasks and sockets end with the block."""
    async with host.run([Multiaddr(address) for address in listen]):
        network: Any = host.get_network()
        contain_tasks(network.manager)
        try:
            yield
        finally:
            with shielded_for(CLOSE_S):
                # Close all connections at once: libp2p would need 0.2 s for each.
                async with trio.open_nursery() as nursery:
                    for connection in host.get_network().get_connections():
                        nursery.start_soon(close_connection, connection)
                await host.close()
